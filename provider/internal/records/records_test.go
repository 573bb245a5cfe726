package records_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/provider/internal/records"
)

type record struct {
	N int `json:"n"`
}

// Any number of processes change a record, one at a time.
func TestLock(t *testing.T) {
	d := records.Dir[record]{Root: t.TempDir(), Name: "boxes"}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			l, err := d.Lock(context.Background(), "one")
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Unlock()
			r := l.Read()
			r.N++
			if err := l.Write(r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r, ok := d.Get("one"); !ok || r.N != 20 {
		t.Errorf("%+v, %v; want 20", r, ok)
	}
	l, err := d.Lock(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := d.Lock(ctx, "one"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second lock: %v", err)
	}
	d.Sweep(func(record) bool { return true })
	if len(d.IDs()) != 1 {
		t.Error("a locked record was removed")
	}
	l.Unlock()
	d.Sweep(func(r record) bool { return r.N == 20 })
	if ids := d.IDs(); len(ids) != 0 {
		t.Errorf("left: %v", ids)
	}
	if l, err = d.Lock(t.Context(), "one"); err != nil || l.Read().N != 0 {
		t.Errorf("a new record: %v", err)
	}
	l.Unlock()
}

func TestFinish(t *testing.T) {
	var work sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	n, err := records.Finish(ctx, &work, func() (int, error) {
		cancel() // and it ends in an orderly way
		return 7, nil
	})
	if n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	work.Wait()
}
