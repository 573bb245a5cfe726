package envd

import "time"

// Procedures of the filesystem service.
const (
	FilesystemStat             = "/filesystem.Filesystem/Stat"
	FilesystemMakeDir          = "/filesystem.Filesystem/MakeDir"
	FilesystemMove             = "/filesystem.Filesystem/Move"
	FilesystemListDir          = "/filesystem.Filesystem/ListDir"
	FilesystemRemove           = "/filesystem.Filesystem/Remove"
	FilesystemWatchDir         = "/filesystem.Filesystem/WatchDir"
	FilesystemCreateWatcher    = "/filesystem.Filesystem/CreateWatcher"
	FilesystemGetWatcherEvents = "/filesystem.Filesystem/GetWatcherEvents"
	FilesystemRemoveWatcher    = "/filesystem.Filesystem/RemoveWatcher"
)

// PathRequest is the request of Stat, MakeDir and Remove.
type PathRequest struct {
	Path string `json:"path,omitempty" pb:"1"`
}

// EntryResponse is the answer of Stat, MakeDir and Move.
type EntryResponse struct {
	Entry *EntryInfo `json:"entry,omitempty" pb:"1"`
}

// MoveRequest renames a file or directory.
type MoveRequest struct {
	Source      string `json:"source,omitempty" pb:"1"`
	Destination string `json:"destination,omitempty" pb:"2"`
}

// ListDirRequest lists a directory down to Depth levels; 0 means 1.
type ListDirRequest struct {
	Path  string `json:"path,omitempty" pb:"1"`
	Depth uint32 `json:"depth,omitempty" pb:"2"`
}

// ListDirResponse lists the entries of a directory.
type ListDirResponse struct {
	Entries []*EntryInfo `json:"entries,omitempty" pb:"1"`
}

// EntryInfo describes a file. For a symbolic link, Type, Mode and the other
// fields describe its target.
type EntryInfo struct {
	Name          string            `json:"name,omitempty" pb:"1"`
	Type          FileType          `json:"type,omitempty" pb:"2"`
	Path          string            `json:"path,omitempty" pb:"3"`
	Size          int64             `json:"size,omitempty,string" pb:"4"`
	Mode          uint32            `json:"mode,omitempty" pb:"5"`
	Permissions   string            `json:"permissions,omitempty" pb:"6"`
	Owner         string            `json:"owner,omitempty" pb:"7"`
	Group         string            `json:"group,omitempty" pb:"8"`
	ModifiedTime  *time.Time        `json:"modifiedTime,omitempty" pb:"9"`
	SymlinkTarget *string           `json:"symlinkTarget,omitempty" pb:"10"`
	Metadata      map[string]string `json:"metadata,omitempty" pb:"11"`
}

// WatchRequest is the request of WatchDir and CreateWatcher.
type WatchRequest struct {
	Path               string `json:"path,omitempty" pb:"1"`
	Recursive          bool   `json:"recursive,omitempty" pb:"2"`
	IncludeEntry       bool   `json:"includeEntry,omitempty" pb:"3"`
	AllowNetworkMounts bool   `json:"allowNetworkMounts,omitempty" pb:"4"`
}

// FilesystemEvent is one change. Name is relative to the watched directory.
type FilesystemEvent struct {
	Name  string     `json:"name,omitempty" pb:"1"`
	Type  EventType  `json:"type,omitempty" pb:"2"`
	Entry *EntryInfo `json:"entry,omitempty" pb:"3"`
}

// WatchDirResponse is one message of a stream of changes. One field is set.
type WatchDirResponse struct {
	Start      *Empty           `json:"start,omitempty" pb:"1"`
	Filesystem *FilesystemEvent `json:"filesystem,omitempty" pb:"2"`
	Keepalive  *Empty           `json:"keepalive,omitempty" pb:"3"`
}

// WatcherRef identifies a polled watcher.
type WatcherRef struct {
	WatcherID string `json:"watcherId,omitempty" pb:"1"`
}

// GetWatcherEventsResponse contains the changes since the last poll.
type GetWatcherEventsResponse struct {
	Events []*FilesystemEvent `json:"events,omitempty" pb:"1"`
}

// FileType is the kind of a file.
type FileType int32

// The kinds of files.
const (
	TypeUnspecified FileType = 0
	TypeFile        FileType = 1
	TypeDirectory   FileType = 2
	TypeSymlink     FileType = 3
)

var fileTypeNames = map[int32]string{0: "FILE_TYPE_UNSPECIFIED", 1: "FILE_TYPE_FILE", 2: "FILE_TYPE_DIRECTORY", 3: "FILE_TYPE_SYMLINK"}

// MarshalText returns the name in protobuf's JSON.
func (t FileType) MarshalText() ([]byte, error) { return enumText(fileTypeNames, int32(t)) }

// UnmarshalJSON reads a name or a number.
func (t *FileType) UnmarshalJSON(b []byte) (err error) {
	*t, err = enumValue[FileType](fileTypeNames, b)
	return err
}

// EventType is the kind of a change to a file.
type EventType int32

// Kinds of changes to a file.
const (
	EventCreate EventType = 1
	EventWrite  EventType = 2
	EventRemove EventType = 3
	EventRename EventType = 4
	EventChmod  EventType = 5
)

var eventTypeNames = map[int32]string{
	0: "EVENT_TYPE_UNSPECIFIED", 1: "EVENT_TYPE_CREATE", 2: "EVENT_TYPE_WRITE", 3: "EVENT_TYPE_REMOVE", 4: "EVENT_TYPE_RENAME", 5: "EVENT_TYPE_CHMOD",
}

// MarshalText returns the name in protobuf's JSON.
func (t EventType) MarshalText() ([]byte, error) { return enumText(eventTypeNames, int32(t)) }

// UnmarshalJSON reads a name or a number.
func (t *EventType) UnmarshalJSON(b []byte) (err error) {
	*t, err = enumValue[EventType](eventTypeNames, b)
	return err
}
