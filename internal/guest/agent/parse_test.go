package agent

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

const testPasswd = `# a comment
broken
root:x:0:0:root:/root:/bin/sh
www:x:33:34::/var/www:/bin/false
nohome:x:40:40::relative:
huge:x:99999999999:1::/:
www:x:7:7::/second:
1000:x:5:5::/five:
user:x:1000:1001::/home/user:
`

const testGroup = `root:x:0:
www:x:34:
adm:x:4:www,user
more:x:50:user,www
odd:x:-1:www
`

func TestResolveAccount(t *testing.T) {
	for spec, want := range map[string]account{
		"":          {uid: 0, gid: 0, groups: []uint32{0}, name: "root", home: "/root"},
		"root":      {uid: 0, gid: 0, groups: []uint32{0}, name: "root", home: "/root"},
		"www":       {uid: 33, gid: 34, groups: []uint32{34, 4, 50}, name: "www", home: "/var/www"},
		"33":        {uid: 33, gid: 34, groups: []uint32{34, 4, 50}, name: "www", home: "/var/www"},
		"33:7":      {uid: 33, gid: 7, groups: []uint32{7}, name: "www", home: "/var/www"},
		"www:adm":   {uid: 33, gid: 4, groups: []uint32{4}, name: "www", home: "/var/www"},
		"nohome":    {uid: 40, gid: 40, groups: []uint32{40}, name: "nohome", home: "/"},
		"12345":     {uid: 12345, gid: 0, groups: []uint32{0}, home: "/"},
		"12345:678": {uid: 12345, gid: 678, groups: []uint32{678}, home: "/"},
		"1000":      {uid: 5, gid: 5, groups: []uint32{5}, name: "1000", home: "/five"},
	} {
		got, err := resolveAccount(spec, []byte(testPasswd), []byte(testGroup))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", spec, got, err, want)
		}
	}
	for _, spec := range []string{"nobody", "www:none", "huge", "broken", "-1", "4294967295", "www:"} {
		if got, err := resolveAccount(spec, []byte(testPasswd), []byte(testGroup)); err == nil {
			t.Errorf("%q is %+v", spec, got)
		}
	}
	if got, err := resolveAccount("root", nil, nil); err != nil || got.home != "/root" || got.uid != 0 {
		t.Errorf("without files: %+v %v", got, err)
	}
}

func FuzzResolveAccount(f *testing.F) {
	f.Add("www:adm", []byte(testPasswd), []byte(testGroup))
	f.Fuzz(func(t *testing.T, spec string, passwd, group []byte) {
		acc, err := resolveAccount(spec, passwd, group)
		if err != nil {
			return
		}
		if len(acc.groups) == 0 || !strings.HasPrefix(acc.home, "/") {
			t.Errorf("%+v", acc)
		}
		if acc.uid == 1<<32-1 || acc.gid == 1<<32-1 {
			t.Errorf("%+v would change nothing", acc)
		}
	})
}

func TestParseStat(t *testing.T) {
	const rest = " 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 77 1 2\n" // from field 7 on
	for line, want := range map[string]procStat{
		"7 (sh) S 1 7 6":              {pid: 7, ppid: 1, session: 6, name: "sh", start: 77},
		"7 (a) Z 9 9 9 (b) R 1 2 3":   {pid: 7, ppid: 1, session: 3, name: "a) Z 9 9 9 (b", start: 77},
		"7 (evil\n) S 0 0 0) Z 2 3 4": {pid: 7, ppid: 2, session: 4, dead: true, name: "evil\n) S 0 0 0", start: 77},
		"12 (((()) X 1 2 5":           {pid: 12, ppid: 1, session: 5, dead: true, name: "((()", start: 77},
	} {
		if got, ok := parseStat([]byte(line + rest)); !ok || got != want {
			t.Errorf("%q: %+v %v", line, got, ok)
		}
	}
	for _, line := range []string{"", " ", "x", "7", "7 (sh)", "7 (sh) S", "7 (sh) S a b c d", "7 (sh) S 1 7 6 0 -1"} {
		if got, ok := parseStat([]byte(line)); ok {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (sh) S 1 7 6 0 -1"))
	f.Add([]byte("0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"))
	f.Fuzz(func(t *testing.T, b []byte) { parseStat(b) })
}

func FuzzMemberName(f *testing.F) {
	for _, s := range []string{"a/b", "./a", "../a", "/a", "a/../../b", "a\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		rel, err := memberName(name)
		if err == nil && (rel == ".." || strings.HasPrefix(rel, "../") || strings.HasPrefix(rel, "/") || strings.Contains(rel, "\x00")) {
			t.Errorf("%q becomes %q", name, rel)
		}
	})
}

// TestLogKeepsTheEnd writes far more than a log keeps, in odd pieces, with a
// concurrent slower reader.
func TestLogKeepsTheEnd(t *testing.T) {
	var all logs
	l := newLog(&all, 1)
	var wrote bytes.Buffer
	for i := range 60_000 {
		p := fmt.Appendf(nil, "line %d of %d\n", i, i%97)
		wrote.Write(p)
		l.write(1, p)
	}
	l.close()
	var got []byte
	var dropped, at int64
	buf := make([]byte, 999)
	for {
		r, wait := l.next(at, 0, buf)
		dropped += r.dropped
		if r.n == 0 {
			if wait != nil {
				t.Fatal("an ended log has readers wait")
			}
			break
		}
		got, at = append(got, buf[:r.n]...), r.next
	}
	if !bytes.Equal(got, wrote.Bytes()[dropped:]) || len(got) > logCap || len(got) < logCap-2*maxPiece {
		t.Errorf("kept %d, dropped %d of %d", len(got), dropped, wrote.Len())
	}
	if all.used != len(got) {
		t.Errorf("%d bytes accounted for, %d kept", all.used, len(got))
	}
	l.forget()
	if all.used != 0 {
		t.Errorf("%d bytes are never given back", all.used)
	}
}

// TestLogsShareABound has more logs than there is memory for.
func TestLogsShareABound(t *testing.T) {
	var all logs
	for range logTotal/logCap + 10 {
		l := newLog(&all, 1)
		l.write(1, make([]byte, logCap))
		if all.used > logTotal {
			t.Fatalf("%d bytes", all.used)
		}
	}
}
