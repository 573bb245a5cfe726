package services_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/internal/control/services"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/sandbox"
)

// The end of a background command is recorded once, whether its caller stays
// connected, or disconnects before or after the end.
func TestEndsInTheBackground(t *testing.T) {
	onFakeTime(t, func(t *testing.T, _ *machine, p *services.Services, ctx context.Context) {
		create(t, p, ctx, sandbox.Spec{Name: "one"})
		request, done := context.WithCancel(ctx)
		defer done()
		sb, err := p.Exec.Open(request, "one")
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]int{}
		for code, stays := range []time.Duration{0, time.Second, 3 * time.Second} {
			proc, err := sb.Exec(request, sandbox.Command{Args: []string{"sh", "-c", "sleep 2; exit $0", string(rune('0' + code))}, Background: true})
			if err != nil {
				t.Fatal(err)
			}
			want[proc.Info().ID] = code
			time.Sleep(stays)
			_ = proc.Close()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		ends, err := p.Events.Events(ctx, sandbox.EventQuery{Types: []string{eventlog.ExecEnded}})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ends {
			code, ok := want[e.Subject]
			if !ok || e.Exit == nil || *e.Exit != code || e.Duration != 2*time.Second {
				t.Errorf("recorded: %+v", e)
			}
			delete(want, e.Subject)
		}
		if len(want) > 0 {
			t.Errorf("the ends of %v are not recorded", want)
		}
	})
}
