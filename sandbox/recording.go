package sandbox

import "time"

// NewRecording asks for a recording of a terminal of a sandbox.
type NewRecording struct {
	// Process is the background command whose terminal is recorded; empty: the
	// login shell that viewers share, which is started if it does not run.
	Process string `json:"process,omitempty" maxLength:"64" doc:"id of a background command on a terminal; the login shell that viewers share if it is left out"`
	// Size is the size of the terminal of a new login shell; zero: 80 by 24.
	Size  WindowSize `json:"size,omitzero" doc:"of the terminal of a new login shell"`
	Title string     `json:"title,omitempty" maxLength:"200" doc:"a title for players"`
	// Input also records what viewers type, including what is not shown, such as
	// passwords. Who fetches the recording then needs the permission exec.
	Input bool `json:"input,omitempty" doc:"also record what viewers type, even if the terminal does not show it, such as passwords"`
	// Max is after how many seconds the recording ends; 0: a day.
	Max int64 `json:"maxSeconds,omitempty" minimum:"0" maximum:"604800" doc:"seconds after which it ends; a day if it is left out"`
}

// RecordingState is the state of a recording. The list is append-only.
type RecordingState string

// The states of recordings.
const (
	RecordingRunning    RecordingState = "recording"
	RecordingFinalizing RecordingState = "finalizing" // it has ended and is being stored
	RecordingAvailable  RecordingState = "available"  // it has ended and is stored completely
	RecordingFailed     RecordingState = "failed"     // see Recording.Reason
)

// CastType is the media type of a recording of a terminal.
const CastType = "application/x-asciicast"

// Recording is a recording of a terminal, as an asciicast file of version 2.
type Recording struct {
	ID      string         `json:"id"`
	State   RecordingState `json:"state" enum:"recording,finalizing,available,failed"`
	Sandbox ID             `json:"sandbox"`
	Name    string         `json:"name" doc:"of the sandbox"`
	Session string         `json:"session,omitempty" doc:"name of the session that it was started for"`
	Kind    string         `json:"kind" enum:"terminal"`
	Format  string         `json:"format" enum:"asciicast-v2"`
	Process string         `json:"process" doc:"the command in the terminal"`
	Title   string         `json:"title,omitempty"`
	Input   bool           `json:"input,omitempty" doc:"it contains what viewers typed"`
	Max     int64          `json:"maxSeconds" doc:"seconds after which it ends"`
	Started time.Time      `json:"started"`
	Ended   time.Time      `json:"ended,omitzero"`
	// Reason is why it ended, or why it failed.
	Reason Reason `json:"reason,omitempty" doc:"why it ended or failed"`
	Size   int64  `json:"size" doc:"bytes recorded, as far as they are stored"`
}

// RecordingQuery selects recordings. The zero value selects all.
type RecordingQuery struct {
	Sandbox string // its name or id
	Session string // its name
	Cursor  string // returned with the page before
	Limit   int    // maximum number; 0: 100
}
