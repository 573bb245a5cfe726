package envd

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"

	"github.com/atoll-run/atoll/internal/plainproto"
)

// messages are samples of all messages, every field of each set.
func messages() []any {
	text, yes, pid := "text é\n", true, uint32(4_000_000_000)
	at := time.Date(2026, 11, 21, 1, 2, 3, 456789000, time.UTC)
	sel := &ProcessSelector{PID: &pid, Tag: &text}
	config := &ProcessConfig{Cmd: "sh", Args: []string{"-c", "", "x"}, Envs: map[string]string{"A": "b=c", "": ""}, Cwd: &text}
	pty := &PTY{Size: &WindowSize{Cols: 80, Rows: 24}}
	input := &ProcessInput{Stdin: []byte{0, 255, 7}, PTY: []byte("x")}
	entry := &EntryInfo{
		Name: "n", Type: TypeSymlink, Path: "/n", Size: 1 << 40, Mode: 0o755, Permissions: "-rwx", Owner: "o", Group: "g",
		ModifiedTime: &at, SymlinkTarget: &text, Metadata: map[string]string{"k": "v"},
	}
	event := &FilesystemEvent{Name: "n", Type: EventChmod, Entry: entry}
	return []any{
		&Empty{}, &ListResponse{Processes: []*ProcessInfo{{Config: config, PID: pid, Tag: &text}, {Config: &ProcessConfig{}}}},
		&StartRequest{Process: config, PTY: pty, Tag: &text, Stdin: &yes}, &ConnectRequest{Process: sel}, &UpdateRequest{Process: sel, PTY: pty},
		&ProcessResponse{Event: &ProcessEvent{Start: &StartEvent{PID: 7}}},
		&ProcessResponse{Event: &ProcessEvent{Data: &DataEvent{Stdout: []byte("out"), Stderr: []byte("err"), PTY: []byte{1}}}},
		&ProcessResponse{Event: &ProcessEvent{End: &EndEvent{ExitCode: -1, Exited: true, Status: "s", Error: &text}}},
		&ProcessResponse{Event: &ProcessEvent{Keepalive: &Empty{}}},
		&SendInputRequest{Process: sel, Input: input}, &SendSignalRequest{Process: sel, Signal: SIGTERM}, &CloseStdinRequest{Process: sel},
		&StreamInputRequest{Start: &StreamInputStart{Process: sel}}, &StreamInputRequest{Data: &StreamInputData{Input: input}},
		&StreamInputRequest{Keepalive: &Empty{}},
		&PathRequest{Path: "/p"}, &EntryResponse{Entry: entry}, &MoveRequest{Source: "a", Destination: "b"}, &ListDirRequest{Path: "p", Depth: 3},
		&ListDirResponse{Entries: []*EntryInfo{entry, {}}}, &WatchRequest{Path: "p", Recursive: true, IncludeEntry: true, AllowNetworkMounts: true},
		&WatchDirResponse{Start: &Empty{}}, &WatchDirResponse{Filesystem: event}, &WatchDirResponse{Keepalive: &Empty{}},
		&WatcherRef{WatcherID: "w"}, &GetWatcherEventsResponse{Events: []*FilesystemEvent{event}},
	}
}

// describe derives a protobuf descriptor of a message type from its tags.
func describe(t reflect.Type, into *descriptorpb.FileDescriptorProto) {
	for _, m := range into.MessageType {
		if m.GetName() == t.Name() {
			return
		}
	}
	m := &descriptorpb.DescriptorProto{Name: proto.String(t.Name())}
	into.MessageType = append(into.MessageType, m)
	for i := range t.NumField() {
		f := t.Field(i)
		text, option, _ := strings.Cut(f.Tag.Get("pb"), ",")
		number, _ := strconv.Atoi(text)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		d := &descriptorpb.FieldDescriptorProto{
			Name: proto.String(strings.ToLower(f.Name)), JsonName: &name, Number: proto.Int32(int32(number)),
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
		}
		typ := f.Type
		switch {
		case typ.Kind() == reflect.Map:
			entry := strings.ToUpper(d.GetName()[:1]) + d.GetName()[1:] + "Entry"
			field := func(name string, n int32) *descriptorpb.FieldDescriptorProto {
				return &descriptorpb.FieldDescriptorProto{
					Name: &name, JsonName: &name, Number: &n, Label: d.Label, Type: descriptorpb.FieldDescriptorProto_TYPE_STRING.Enum(),
				}
			}
			m.NestedType = append(m.NestedType, &descriptorpb.DescriptorProto{
				Name: &entry, Field: []*descriptorpb.FieldDescriptorProto{field("key", 1), field("value", 2)},
				Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
			})
			d.Label, d.Type = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(), descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
			d.TypeName = proto.String(".test." + t.Name() + "." + entry)
			m.Field = append(m.Field, d)
			continue
		case typ.Kind() == reflect.Slice && typ.Elem().Kind() != reflect.Uint8:
			d.Label, typ = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum(), typ.Elem()
		}
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		d.Type = scalarType(typ, option == "zigzag").Enum()
		switch {
		case typ == reflect.TypeFor[time.Time]():
			d.TypeName = proto.String(".google.protobuf.Timestamp")
		case typ.Kind() == reflect.Struct:
			d.TypeName = proto.String(".test." + typ.Name())
			describe(typ, into)
		case d.GetType() == descriptorpb.FieldDescriptorProto_TYPE_ENUM:
			d.TypeName = proto.String(".test." + typ.Name())
			describeEnum(typ, into)
		}
		m.Field = append(m.Field, d)
	}
}

var enums = map[string]map[int32]string{"Signal": signalNames, "FileType": fileTypeNames, "EventType": eventTypeNames}

func describeEnum(t reflect.Type, into *descriptorpb.FileDescriptorProto) {
	for _, e := range into.EnumType {
		if e.GetName() == t.Name() {
			return
		}
	}
	e := &descriptorpb.EnumDescriptorProto{Name: proto.String(t.Name())}
	for n := range int32(16) {
		if name, ok := enums[t.Name()][n]; ok {
			e.Value = append(e.Value, &descriptorpb.EnumValueDescriptorProto{Name: &name, Number: &n})
		}
	}
	into.EnumType = append(into.EnumType, e)
}

func scalarType(t reflect.Type, zigzag bool) descriptorpb.FieldDescriptorProto_Type {
	switch {
	case t.Kind() == reflect.Struct:
		return descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	case t.Kind() == reflect.Slice:
		return descriptorpb.FieldDescriptorProto_TYPE_BYTES
	case t.Kind() == reflect.String:
		return descriptorpb.FieldDescriptorProto_TYPE_STRING
	case t.Kind() == reflect.Bool:
		return descriptorpb.FieldDescriptorProto_TYPE_BOOL
	case t.Kind() == reflect.Uint32:
		return descriptorpb.FieldDescriptorProto_TYPE_UINT32
	case t.Kind() == reflect.Int64:
		return descriptorpb.FieldDescriptorProto_TYPE_INT64
	case zigzag:
		return descriptorpb.FieldDescriptorProto_TYPE_SINT32
	}
	return descriptorpb.FieldDescriptorProto_TYPE_ENUM
}

// theirs returns protobuf's descriptors of our messages.
func theirs(t *testing.T) func(name string) protoreflect.MessageDescriptor {
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String("test.proto"), Package: proto.String("test"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/timestamp.proto"},
	}
	for _, m := range messages() {
		describe(reflect.TypeOf(m).Elem(), file)
	}
	d, err := protodesc.NewFile(file, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	return func(name string) protoreflect.MessageDescriptor { return d.Messages().ByName(protoreflect.Name(name)) }
}

// TestAgainstProtobuf checks that the protobuf library reads our output and
// that we read its output, in both encodings.
func TestAgainstProtobuf(t *testing.T) {
	types := theirs(t)
	for _, m := range messages() {
		typ := reflect.TypeOf(m).Elem()
		for _, codec := range []interface {
			Name() string
			Marshal(any) ([]byte, error)
			Unmarshal([]byte, any) error
		}{plainproto.Codec{}, JSON{"json"}} {
			b, err := codec.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			other := dynamicpb.NewMessage(types(typ.Name()))
			var back []byte
			if codec.Name() == "proto" {
				if err = proto.Unmarshal(b, other); err == nil {
					back, err = proto.Marshal(other)
				}
				if len(other.GetUnknown()) > 0 {
					t.Errorf("%s: fields that protobuf does not know", typ.Name())
				}
			} else if err = protojson.Unmarshal(b, other); err == nil {
				back, err = protojson.Marshal(other)
			}
			if err != nil {
				t.Errorf("%s as %s: %v\n%s", typ.Name(), codec.Name(), err, b)
				continue
			}
			again := reflect.New(typ)
			if err := codec.Unmarshal(back, again.Interface()); err != nil {
				t.Errorf("%s as %s: %v", typ.Name(), codec.Name(), err)
			}
			if !reflect.DeepEqual(m, again.Interface()) {
				want, _ := json.Marshal(m)
				got, _ := json.Marshal(again.Interface())
				t.Errorf("%s as %s: %s becomes %s", typ.Name(), codec.Name(), want, got)
			}
		}
	}
}

func TestLeniency(t *testing.T) {
	var req StartRequest
	if err := (JSON{}).Unmarshal([]byte(`{"process":{"cmd":"x","new":1},"later":{}}`), &req); err != nil || req.Process.Cmd != "x" || req.Stdin != nil {
		t.Errorf("%v, %+v", err, req)
	}
	var sig SendSignalRequest
	for _, text := range []string{`{"signal":9}`, `{"signal":"SIGNAL_SIGKILL"}`, `{"signal":"9"}`} {
		if err := (JSON{}).Unmarshal([]byte(text), &sig); err != nil || sig.Signal != SIGKILL {
			t.Errorf("%s: %v, %v", text, err, sig.Signal)
		}
	}
	if err := (JSON{}).Unmarshal([]byte(`{"signal":"SIGNAL_SIGHUP"}`), &sig); err == nil {
		t.Error("an unknown name is taken for a signal")
	}
	if err := (JSON{}).Unmarshal(nil, &req); err != nil {
		t.Error(err)
	}
}

func TestKeys(t *testing.T) {
	const token = "atoll_abcDEF"
	key := Key(token)
	if key != "e2b_61746f6c6c5f616263444546" || Token(key) != token || Key(key) != key || Token(token) != token {
		t.Errorf("%q becomes %q", token, key)
	}
	for _, odd := range []string{"", "e2b_", "e2b_zz", "e2b_6", "e2b_4A"} {
		if got := Token(odd); got != odd && odd != "e2b_" {
			t.Errorf("%q becomes %q", odd, got)
		}
	}
}

func FuzzProto(f *testing.F) {
	for _, m := range messages() {
		b, err := plainproto.Codec{}.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range messages() {
			one := reflect.New(reflect.TypeOf(m).Elem()).Interface()
			if (plainproto.Codec{}).Unmarshal(b, one) != nil {
				continue
			}
			again, err := plainproto.Codec{}.Marshal(one)
			two := reflect.New(reflect.TypeOf(m).Elem()).Interface()
			if err != nil || (plainproto.Codec{}).Unmarshal(again, two) != nil || !reflect.DeepEqual(one, two) {
				t.Fatalf("%T: %v does not survive, %v", m, one, err)
			}
		}
	})
}
