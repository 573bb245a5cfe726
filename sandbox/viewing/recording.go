package viewing

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// The kinds of recordings.
const (
	RecordTerminal = "terminal"
	RecordDesktop  = "desktop"
)

// NewRecording asks for a recording of a terminal or of the desktop of a
// sandbox.
type NewRecording struct {
	// Kind is what is recorded; empty: a terminal. A desktop that does not run is
	// started.
	Kind string `json:"kind,omitempty" enum:"terminal,desktop" doc:"what is recorded; a terminal if it is left out"`
	// FPS is the number of pictures of a desktop per second; 0: 15.
	FPS int `json:"fps,omitempty" minimum:"0" maximum:"30" doc:"of a desktop: pictures per second, 15 if it is left out"`
	// Process is the background command whose terminal is recorded; empty: the
	// login shell that viewers share, which is started if it does not run.
	Process string `json:"process,omitempty" maxLength:"64" doc:"id of a background command on a terminal; the login shell that viewers share if it is left out"`
	// Size is the size of the terminal of a new login shell; zero: 80 by 24.
	Size  sandbox.WindowSize `json:"size,omitzero" doc:"of the terminal of a new login shell"`
	Title string             `json:"title,omitempty" maxLength:"200" doc:"a title for players"`
	// Input also records what viewers type, including what is not shown, such as
	// passwords. Who fetches the recording then needs the permission exec.
	Input bool `json:"input,omitempty" doc:"also record what viewers type, even if the terminal does not show it, such as passwords"`
	// Max is after how many seconds the recording ends; 0: a day, of a desktop ten
	// minutes.
	Max int64 `json:"maxSeconds,omitempty" minimum:"0" maximum:"604800" doc:"seconds after which it ends; if it is left out, a day, and of a desktop ten minutes"`
}

// RecordMode says when the desktop of a session is recorded without a request.
type RecordMode string

// When the desktop of a session is recorded. Empty: RecordManual.
const (
	RecordManual RecordMode = "manual"  // never
	RecordOnTurn RecordMode = "on-turn" // in turns that use it, until the turn is released
)

// RecordingState is the state of a recording. The list is append-only.
type RecordingState string

// The states of recordings.
const (
	RecordingRunning    RecordingState = "recording"
	RecordingFinalizing RecordingState = "finalizing" // it has ended and is being stored
	RecordingAvailable  RecordingState = "available"  // it has ended and is stored completely
	RecordingFailed     RecordingState = "failed"     // see Recording.Reason
)

// The formats of recordings, and their media types.
const (
	FormatCast  = "asciicast-v2"
	FormatVideo = "h264-mp4" // in fragments of a second
	CastType    = "application/x-asciicast"
	VideoType   = "video/mp4"
)

// Recording is a recording: of a terminal, an asciicast file of version 2, and of
// a desktop, an MP4 file with H.264 video.
type Recording struct {
	ID      string         `json:"id"`
	State   RecordingState `json:"state" enum:"recording,finalizing,available,failed"`
	Sandbox sandbox.ID     `json:"sandbox"`
	Name    string         `json:"name" doc:"of the sandbox"`
	Session string         `json:"session,omitempty" doc:"name of the session that it was started for"`
	Kind    string         `json:"kind" enum:"terminal,desktop"`
	Format  string         `json:"format" enum:"asciicast-v2,h264-mp4"`
	Process string         `json:"process" doc:"the command in the terminal; empty for a desktop"`
	FPS     int            `json:"fps,omitempty" doc:"of a desktop: pictures per second"`
	Title   string         `json:"title,omitempty"`
	Input   bool           `json:"input,omitempty" doc:"it contains what viewers typed"`
	Max     int64          `json:"maxSeconds" doc:"seconds after which it ends"`
	Started time.Time      `json:"started"`
	Ended   time.Time      `json:"ended,omitzero"`
	// Reason is why it ended, or why it failed.
	Reason sandbox.Reason `json:"reason,omitempty" doc:"why it ended or failed"`
	Size   int64          `json:"size" doc:"bytes recorded, as far as they are stored"`
}

// Suffix returns how the name of its file ends.
func (r *Recording) Suffix() string {
	if r.Format == FormatVideo {
		return ".mp4"
	}
	return ".cast"
}

// RecordingQuery selects recordings. The zero value selects all.
type RecordingQuery struct {
	Sandbox string // its name or id
	Session string // its name
	Cursor  string // returned with the page before
	Limit   int    // maximum number; 0: 100
}
