package viewing

import (
	"github.com/atoll-run/atoll/sandbox"
)

// The reasons for which streams and recordings end, besides those of commands.
const (
	// Of streams.
	ReasonDisconnected sandbox.Reason = "client-disconnect" // the viewer went away, or the server inside
	ReasonReaped       sandbox.Reason = "reaped"            // the sandbox or the daemon ended
	ReasonRevoked      sandbox.Reason = "revoked"           // the stream was revoked
	ReasonRollover     sandbox.Reason = "box-rollover"      // another sandbox serves the session
	ReasonGrantRevoked sandbox.Reason = "grant-revoked"     // the key that opened the stream is not valid any more
	ReasonAdmin        sandbox.Reason = "admin"             // by a request

	// Of recordings, besides exited, reaped, box-rollover and admin.
	ReasonTimeLimit    sandbox.Reason = "time-limit"    // it had its longest duration
	ReasonSizeLimit    sandbox.Reason = "size-limit"    // it had its largest size
	ReasonDiskFull     sandbox.Reason = "disk-full"     // the daemon could not write more of it
	ReasonTurnOver     sandbox.Reason = "turn-over"     // the turn that it was made for was released
	ReasonTakenOver    sandbox.Reason = "taken-over"    // another connection took over the command
	ReasonUploadFailed sandbox.Reason = "upload-failed" // it could not be stored; that is tried again
	ReasonSandboxDeath sandbox.Reason = "box-death"     // what was recorded is lost
	ReasonNoDisplay    sandbox.Reason = "display-unavailable"
	ReasonFFmpeg       sandbox.Reason = "ffmpeg-error" // ffmpeg ended, or wrote what is no video
)
