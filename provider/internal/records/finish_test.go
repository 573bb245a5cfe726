package records_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/provider/internal/records"
)

// A canceled caller waits for a cleanup, but not for long. A slow cleanup goes
// on and keeps the record locked, so that nothing else uses its id.
func TestFinish(t *testing.T) {
	for _, c := range []struct{ cleanup, want time.Duration }{
		{time.Second, time.Second}, {time.Minute, 10 * time.Second},
	} {
		root := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			d := records.Dir[map[string]string]{Root: root, Name: "boxes"}
			l, err := d.Lock(t.Context(), "one")
			if err != nil {
				t.Fatal(err)
			}
			failed := errors.New("undone")
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			var work sync.WaitGroup
			began := time.Now()
			_, err = records.Finish(ctx, &work, func() (int, error) {
				defer l.Unlock()
				time.Sleep(c.cleanup)
				return 0, failed
			})
			if took := time.Since(began); took != c.want {
				t.Errorf("a cleanup of %s: it returned after %s", c.cleanup, took)
			}
			if slow := c.cleanup > c.want; slow != errors.Is(err, context.Canceled) || slow == errors.Is(err, failed) {
				t.Errorf("a cleanup of %s: %v", c.cleanup, err)
			} else if slow {
				if other, err := d.Lock(ctx, "one"); err == nil {
					other.Unlock()
					t.Error("the record is not locked during the cleanup")
				}
			}
			work.Wait() // as Close does
			if took := time.Since(began); took != c.cleanup {
				t.Errorf("the cleanup ended after %s", took)
			}
			other, err := d.Lock(t.Context(), "one")
			if err != nil {
				t.Fatal(err)
			}
			other.Unlock()
		})
	}
}
