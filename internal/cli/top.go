package cli

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// load is the resource usage of one sandbox. A figure that is not known is nil.
type load struct {
	ID          sandbox.ID `json:"id"`
	Name        string     `json:"name"`
	CPU         *float64   `json:"cpuPercent"` // of one processor
	Memory      *int64     `json:"memory"`     // bytes
	MemoryLimit int64      `json:"memoryLimit,omitempty"`
	PIDs        *int64     `json:"pids"`
	Disk        *int64     `json:"disk"` // bytes

	Limits map[string]sandbox.Enforcement `json:"limits,omitempty"` // those that are not enforced
}

// orders are what top can sort by, the largest first but for names.
var orders = map[string]func(a, b load) int{
	"name":   func(a, b load) int { return cmp.Compare(a.Name, b.Name) },
	"cpu":    func(a, b load) int { return descending(a.CPU, b.CPU) },
	"memory": func(a, b load) int { return descending(a.Memory, b.Memory) },
	"disk":   func(a, b load) int { return descending(a.Disk, b.Disk) },
	"pids":   func(a, b load) int { return descending(a.PIDs, b.PIDs) },
}

func descending[T int64 | float64](a, b *T) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return cmp.Compare(*b, *a)
}

func (a listCommands) topCmd() *cobra.Command {
	var once, asJSON, allTenants bool
	var sortBy string
	every := durationFlag(2 * time.Second)
	cmd := &cobra.Command{
		Use:     "top [SANDBOX...]",
		Aliases: []string{"stats"},
		Short:   "Show what sandboxes consume, live",
		Long: `Top shows the processor time, memory, processes and disk usage of running sandboxes
until it is interrupted. 100% is one processor; "-" stands for an unknown value, or
for a limit that is not enforced.
Watching a sandbox does not count as use: idle policies apply all the same.`,
		Example: `  atoll top --no-stream
  atoll top --no-stream --sort memory --json`,
		GroupID:           groupBox,
		ValidArgsFunction: a.completeSandboxes,
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "no-stream", false, "show one sample and end")
	flags.BoolVar(&asJSON, "json", false, "write JSON, a line for each sample")
	flags.StringVar(&sortBy, "sort", "cpu", "by name, cpu, memory, disk or pids")
	flags.Var(&every, "interval", "time between two samples")
	allTenantsFlag(flags, &allTenants)
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"name", "cpu", "memory", "disk", "pids"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = interruptible(func(ctx context.Context, args []string) error {
		order := orders[sortBy]
		if order == nil {
			return badFlag("sort", "%q is not one of name, cpu, memory, disk and pids", sortBy)
		}
		target, err := a.targetOf(ctx, allTenants)
		if err != nil {
			return err
		}
		m := &meter{target: target, only: args, boxes: map[sandbox.ID]usager{}, before: map[sandbox.ID]sandbox.Usage{}}
		return a.top(ctx, m, order, time.Duration(every), once, asJSON)
	})
	return cmd
}

// firstSample is how long processor time is measured before something is shown.
const firstSample = 500 * time.Millisecond

func (a listCommands) top(ctx context.Context, m *meter, order func(a, b load) int, every time.Duration, once, asJSON bool) error {
	if err := m.check(ctx); err != nil {
		return err
	}
	if _, err := m.sample(ctx); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(min(firstSample, every)):
	}
	frame := func(ctx context.Context) (string, error) {
		all, err := m.sample(ctx)
		if err != nil {
			return "", err
		}
		slices.SortStableFunc(all, func(x, y load) int { return cmp.Or(order(x, y), cmp.Compare(x.Name, y.Name)) })
		if asJSON {
			var b strings.Builder
			err := writeJSON(&b, append([]load{}, all...), "")
			return b.String(), err
		}
		return loadTable(all), nil
	}
	if !once {
		return a.watch(ctx, every, frame)
	}
	text, err := frame(ctx)
	if err == nil {
		err = a.printf("%s", painted(text))
	}
	return err
}

func loadTable(all []load) string {
	rows := make([][]string, 0, len(all))
	for _, l := range all {
		memory := sizeOf(l.Memory) + " / -"
		if _, loose := l.Limits["memory"]; l.MemoryLimit > 0 && !loose {
			memory = sizeOf(l.Memory) + " / " + units.BytesSize(float64(l.MemoryLimit))
		}
		share, pids := "-", "-"
		if l.CPU != nil {
			share = strconv.FormatFloat(*l.CPU, 'f', 1, 64)
		}
		if l.PIDs != nil {
			pids = strconv.FormatInt(*l.PIDs, 10)
		}
		rows = append(rows, []string{l.Name, share, memory, pids, sizeOf(l.Disk)})
	}
	return columns([]string{"NAME", "CPU %", "MEMORY / LIMIT", "PIDS", "DISK"}, rows, 63)
}

func sizeOf(n *int64) string {
	if n == nil {
		return "-"
	}
	return units.BytesSize(float64(*n))
}

// usager measures its own resource usage.
type usager interface {
	Usage(ctx context.Context) (sandbox.Usage, error)
}

// meter measures sandboxes repeatedly.
type meter struct {
	target target
	only   []string // names or ids; none: all
	boxes  map[sandbox.ID]usager
	before map[sandbox.ID]sandbox.Usage
}

const (
	// atOnce is how many sandboxes are asked at the same time.
	atOnce = 8
	// askTime limits one measurement; after that, its values are unknown.
	askTime = 5 * time.Second
)

// check refuses names that no sandbox has. One that is there and does not run
// consumes nothing.
func (m *meter) check(ctx context.Context) error {
	if len(m.only) == 0 {
		return nil
	}
	all, err := m.target.List(ctx)
	if err != nil {
		return err
	}
	for _, name := range m.only {
		if !slices.ContainsFunc(all, func(s sandbox.Sandbox) bool { return s.Name == name || string(s.ID) == name }) {
			return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "no such sandbox", Hint: "see what exists with: atoll ls"}
		}
	}
	return nil
}

// sample asks every sandbox that runs. One that ends meanwhile is left out.
func (m *meter) sample(ctx context.Context) ([]load, error) {
	all, err := m.target.List(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(s sandbox.Sandbox) bool {
		return s.State != sandbox.Running || len(m.only) > 0 && !slices.Contains(m.only, s.Name) && !slices.Contains(m.only, string(s.ID))
	})
	if err := m.open(ctx, all); err != nil {
		return nil, err
	}
	now := make([]sandbox.Usage, len(all))
	failed := make([]error, len(all))
	slots := make(chan struct{}, atOnce)
	var asked sync.WaitGroup
	for i, s := range all {
		box := m.boxes[s.ID]
		if box == nil {
			failed[i] = ctx.Err()
			continue
		}
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			short, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			now[i], failed[i] = box.Usage(short)
		})
	}
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return m.loads(all, now, failed)
}

// open finds the sandboxes that are new, and forgets those that are gone.
func (m *meter) open(ctx context.Context, all []sandbox.Sandbox) error {
	old := m.boxes
	m.boxes = make(map[sandbox.ID]usager, len(all))
	for _, s := range all {
		if b, known := old[s.ID]; known {
			m.boxes[s.ID] = b
			continue
		}
		b, err := m.target.Find(ctx, string(s.ID))
		if err != nil {
			if missing(err) {
				continue
			}
			return err
		}
		if u, ok := b.(usager); ok {
			m.boxes[s.ID] = u
		}
	}
	return nil
}

// loads makes rates of two samples.
func (m *meter) loads(all []sandbox.Sandbox, now []sandbox.Usage, failed []error) ([]load, error) {
	before := m.before
	m.before = make(map[sandbox.ID]sandbox.Usage, len(all))
	var out []load
	for i, s := range all {
		switch sandbox.CodeOf(failed[i]) {
		case "":
		case sandbox.CodeUnsupported:
			return nil, failed[i]
		default:
			continue // it ended or went to rest
		}
		u := now[i]
		m.before[s.ID] = u
		l := load{
			ID: s.ID, Name: s.Name, MemoryLimit: max(s.Resources.Memory, 0), Limits: s.Limits,
			Memory: known(u.Memory), PIDs: known(u.PIDs), Disk: known(u.Disk),
		}
		if b, measured := before[s.ID]; measured && b.CPU >= 0 && u.CPU >= b.CPU && u.Sampled.After(b.Sampled) {
			share := 100 * float64(u.CPU-b.CPU) / float64(u.Sampled.Sub(b.Sampled))
			l.CPU = &share
		}
		out = append(out, l)
	}
	return out, nil
}

// known returns a figure that a negative number says is not known.
func known(n int64) *int64 {
	if n < 0 {
		return nil
	}
	return &n
}
