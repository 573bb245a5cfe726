package envd

// Procedures of the process service.
const (
	ProcessList        = "/process.Process/List"
	ProcessStart       = "/process.Process/Start"
	ProcessConnect     = "/process.Process/Connect"
	ProcessUpdate      = "/process.Process/Update"
	ProcessStreamInput = "/process.Process/StreamInput"
	ProcessSendInput   = "/process.Process/SendInput"
	ProcessSendSignal  = "/process.Process/SendSignal"
	ProcessCloseStdin  = "/process.Process/CloseStdin"
)

// Empty is a message without fields.
type Empty struct{}

// WindowSize is the size of a terminal in characters.
type WindowSize struct {
	Cols uint32 `json:"cols,omitempty" pb:"1"`
	Rows uint32 `json:"rows,omitempty" pb:"2"`
}

// PTY requests a terminal.
type PTY struct {
	Size *WindowSize `json:"size,omitempty" pb:"1"`
}

// ProcessConfig describes a command to run.
type ProcessConfig struct {
	Cmd  string            `json:"cmd,omitempty" pb:"1"`
	Args []string          `json:"args,omitempty" pb:"2"`
	Envs map[string]string `json:"envs,omitempty" pb:"3"`
	Cwd  *string           `json:"cwd,omitempty" pb:"4"`
}

// ProcessInfo describes a running process.
type ProcessInfo struct {
	Config *ProcessConfig `json:"config,omitempty" pb:"1"`
	PID    uint32         `json:"pid,omitempty" pb:"2"`
	Tag    *string        `json:"tag,omitempty" pb:"3"`
}

// ListResponse lists the running processes.
type ListResponse struct {
	Processes []*ProcessInfo `json:"processes,omitempty" pb:"1"`
}

// StartRequest starts a process.
type StartRequest struct {
	Process *ProcessConfig `json:"process,omitempty" pb:"1"`
	PTY     *PTY           `json:"pty,omitempty" pb:"2"`
	Tag     *string        `json:"tag,omitempty" pb:"3"`
	// Stdin reports whether the process has an input. The default is true.
	Stdin *bool `json:"stdin,omitempty" pb:"4"`
}

// ConnectRequest requests the output of a process from now on.
type ConnectRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
}

// ProcessSelector identifies a process. One field is set.
type ProcessSelector struct {
	PID *uint32 `json:"pid,omitempty" pb:"1"`
	Tag *string `json:"tag,omitempty" pb:"2"`
}

// ProcessResponse is one message of the streams of Start and Connect.
type ProcessResponse struct {
	Event *ProcessEvent `json:"event,omitempty" pb:"1"`
}

// ProcessEvent is an event of a process. One field is set.
type ProcessEvent struct {
	Start     *StartEvent `json:"start,omitempty" pb:"1"`
	Data      *DataEvent  `json:"data,omitempty" pb:"2"`
	End       *EndEvent   `json:"end,omitempty" pb:"3"`
	Keepalive *Empty      `json:"keepalive,omitempty" pb:"4"`
}

// StartEvent is the first event of every stream.
type StartEvent struct {
	PID uint32 `json:"pid,omitempty" pb:"1"`
}

// DataEvent is output of a process. One field is set.
type DataEvent struct {
	Stdout []byte `json:"stdout,omitempty" pb:"1"`
	Stderr []byte `json:"stderr,omitempty" pb:"2"`
	PTY    []byte `json:"pty,omitempty" pb:"3"`
}

// EndEvent reports how a process ended.
type EndEvent struct {
	ExitCode int32   `json:"exitCode,omitempty" pb:"1,zigzag"`
	Exited   bool    `json:"exited,omitempty" pb:"2"`
	Status   string  `json:"status,omitempty" pb:"3"`
	Error    *string `json:"error,omitempty" pb:"4"`
}

// UpdateRequest sets the size of a terminal.
type UpdateRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
	PTY     *PTY             `json:"pty,omitempty" pb:"2"`
}

// ProcessInput is input for a process. One field is set.
type ProcessInput struct {
	Stdin []byte `json:"stdin,omitempty" pb:"1"`
	PTY   []byte `json:"pty,omitempty" pb:"2"`
}

// SendInputRequest writes to a process.
type SendInputRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
	Input   *ProcessInput    `json:"input,omitempty" pb:"2"`
}

// StreamInputRequest is one message of an input stream. One field is set, in
// the first message Start.
type StreamInputRequest struct {
	Start     *StreamInputStart `json:"start,omitempty" pb:"1"`
	Data      *StreamInputData  `json:"data,omitempty" pb:"2"`
	Keepalive *Empty            `json:"keepalive,omitempty" pb:"3"`
}

// StreamInputStart selects the process that receives the input.
type StreamInputStart struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
}

// StreamInputData is a piece of input.
type StreamInputData struct {
	Input *ProcessInput `json:"input,omitempty" pb:"2"`
}

// SendSignalRequest signals a process.
type SendSignalRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
	Signal  Signal           `json:"signal,omitempty" pb:"2"`
}

// CloseStdinRequest closes the input of a process.
type CloseStdinRequest struct {
	Process *ProcessSelector `json:"process,omitempty" pb:"1"`
}

// Signal is a signal by its Linux number.
type Signal int32

// The signals that can be sent.
const (
	SIGKILL Signal = 9
	SIGTERM Signal = 15
)

var signalNames = map[int32]string{0: "SIGNAL_UNSPECIFIED", 9: "SIGNAL_SIGKILL", 15: "SIGNAL_SIGTERM"}

// MarshalText returns the name in protobuf's JSON.
func (s Signal) MarshalText() ([]byte, error) { return enumText(signalNames, int32(s)) }

// UnmarshalJSON reads a name or a number.
func (s *Signal) UnmarshalJSON(b []byte) (err error) {
	*s, err = enumValue[Signal](signalNames, b)
	return err
}
