package eventlog_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
)

const childEnv = "ATOLL_EVENTLOG_TEST_CHILD"

// The test binary runs itself as the process that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		fmt.Fprintln(os.Stderr, appendForEver(path))
		os.Exit(1)
	}
	os.Exit(storetest.Main(m))
}

// appendForEver appends events and prints the number of each written record.
func appendForEver(path string) error {
	s, err := store.Open(context.Background(), path, store.Options{})
	if err != nil {
		return err
	}
	l := eventlog.New(s, eventlog.Options{Anchor: &eventlog.FileAnchor{Dir: filepath.Dir(path) + "/heads"}, AnchorEvery: 1})
	var wg sync.WaitGroup
	errs := make(chan error, 4)
	for range cap(errs) {
		wg.Go(func() {
			for {
				e, err := l.Announce(context.Background(), "n1", event("acme", "/a"))
				if err != nil {
					errs <- err
					return
				}
				fmt.Println(e.Seq)
			}
		})
	}
	return <-errs
}

// TestKilledAppender kills a process that appends, several times. Every record
// that it reported as written must exist, and the chain and its anchor must be
// valid.
func TestKilledAppender(t *testing.T) {
	path := filepath.Join(t.TempDir(), "atoll.db")
	var last int64
	for round := range 10 {
		s, err := store.Open(t.Context(), path, store.Options{})
		ok(t, err)
		tenants(t, s, "acme")
		l := eventlog.New(s, eventlog.Options{Anchor: &eventlog.FileAnchor{Dir: filepath.Dir(path) + "/heads"}})
		r, err := l.Verify(t.Context(), "acme")
		ok(t, err)
		if r.Fault != nil || r.Records < last {
			t.Fatalf("round %d: %d records are sound, %d were acknowledged: %+v", round, r.Records, last, r.Fault)
		}
		ok(t, l.Close())
		ok(t, s.Close())

		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for n := 1 + rand.IntN(60); n > 0 && lines.Scan(); n-- {
			last = max(last, number(t, lines.Text()))
		}
		ok(t, cmd.Process.Kill())
		for lines.Scan() {
			last = max(last, number(t, lines.Text()))
		}
		_ = cmd.Wait() // killed
	}
	if last < 20 {
		t.Errorf("only %d were written", last)
	}
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	ok(t, err)
	return n
}
