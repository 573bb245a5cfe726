package sandboxes

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
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

	sandbox sandbox.Sandbox
	running []sandbox.ProcessInfo // with --details
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
	var once, asJSON, allTenants, details bool
	var sortBy string
	var wanted, filter []string
	every := resource.DurationFlag(2 * time.Second)
	cmd := &cobra.Command{
		Use:     "top [SANDBOX...]",
		Aliases: []string{"stats"},
		Short:   "Show what sandboxes consume, live",
		Long: `Top shows the processor time, memory, processes and disk usage of running sandboxes
until it is interrupted. 100% is one processor; "-" stands for an unknown value, or
for a limit that is not enforced. With --details it also shows what each sandbox is,
which commands run in it, and why a limit is not enforced.
Watching a sandbox does not count as use: idle policies apply all the same.`,
		Example: `  atoll top --no-stream
  atoll top --no-stream --sort memory --json
  atoll top --no-stream --details --label team=red`,
		GroupID:           resource.GroupSandbox,
		ValidArgsFunction: resource.CompleteSandboxes(a.Env),
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "no-stream", false, "show one sample and end")
	flags.BoolVar(&asJSON, "json", false, "write JSON, a line for each sample")
	flags.BoolVarP(&details, "details", "d", false, "show each sandbox with its commands, limits and labels")
	flags.StringArrayVarP(&wanted, "label", "l", nil, "only those with this label: KEY or KEY=VALUE")
	flags.StringArrayVarP(&filter, "filter", "f", nil, "only those with this KEY=VALUE: name (a part of it), id (how it begins), image, label")
	flags.StringVar(&sortBy, "sort", "cpu", "by name, cpu, memory, disk or pids")
	flags.Var(&every, "interval", "time between two samples")
	target.AllTenantsFlag(flags, &allTenants)
	cmd.MarkFlagsMutuallyExclusive("json", "details")
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions([]string{"name", "cpu", "memory", "disk", "pids"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		order := orders[sortBy]
		if order == nil {
			return term.BadFlag("sort", "%q is not one of name, cpu, memory, disk and pids", sortBy)
		}
		match, err := resource.ParseFilters(filter)
		if err != nil {
			return err
		}
		if _, given := match["state"]; given {
			return term.BadFlag("filter", "only running sandboxes consume something; for the others use: atoll ls --filter state=STATE")
		}
		target, err := a.TargetOf(ctx, allTenants)
		if err != nil {
			return err
		}
		m := &meter{target: target, only: args, labels: wanted, filters: match, details: details, sandboxes: map[sandbox.ID]usager{}, before: map[sandbox.ID]sandbox.Usage{}}
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
			err := term.WriteJSON(&b, append([]load{}, all...), "")
			return b.String(), err
		}
		if m.details {
			return loadDetails(all), nil
		}
		return loadTable(all), nil
	}
	if !once {
		return a.Watch(ctx, every, frame)
	}
	text, err := frame(ctx)
	if err == nil {
		err = a.Printf("%s", term.Painted(text))
	}
	return err
}

func loadTable(all []load) string {
	rows := make([][]string, 0, len(all))
	for _, l := range all {
		rows = append(rows, []string{l.Name, l.share(), l.memory(), l.pids(), sizeOf(l.Disk)})
	}
	return term.Columns([]string{"NAME", "CPU %", "MEMORY / LIMIT", "PIDS", "DISK"}, rows, 63)
}

func (l *load) share() string {
	if l.CPU == nil {
		return "-"
	}
	return strconv.FormatFloat(*l.CPU, 'f', 1, 64)
}

func (l *load) memory() string {
	if _, loose := l.Limits["memory"]; l.MemoryLimit > 0 && !loose {
		return sizeOf(l.Memory) + " / " + units.BytesSize(float64(l.MemoryLimit))
	}
	return sizeOf(l.Memory) + " / -"
}

func (l *load) pids() string {
	if l.PIDs == nil {
		return "-"
	}
	return strconv.FormatInt(*l.PIDs, 10)
}

// loadDetails shows each sandbox in several lines.
func loadDetails(all []load) string {
	parts := make([]string, 0, len(all))
	for i := range all {
		l := &all[i]
		rows := [][]string{
			{"cpu", l.share() + " %"},
			{"memory", l.memory()},
			{"processes", l.pids()},
			{"disk", sizeOf(l.Disk)},
			{"image", l.sandbox.Image},
			{"provider", term.OrDash(l.sandbox.Provider)},
			{"created", term.Ago(l.sandbox.Created)},
			{"ends", ends(&l.sandbox)},
			{"labels", term.OrDash(term.LabelText(l.sandbox.Labels))},
		}
		for _, name := range slices.Sorted(maps.Keys(l.Limits)) {
			rows = append(rows, []string{"limit", name + " is not enforced: " + l.Limits[name].Why})
		}
		for _, p := range l.running {
			rows = append(rows, []string{"runs", term.CommandText(p.Args) + ", " + term.Ago(p.Started)})
		}
		parts = append(parts, term.Columns([]string{l.Name, string(l.ID)}, rows, 100))
	}
	return strings.Join(parts, "\n")
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
	target    target.Sandboxes
	only      []string // names or ids; none: all
	labels    []string
	filters   resource.Filters
	details   bool
	sandboxes map[sandbox.ID]usager
	before    map[sandbox.ID]sandbox.Usage
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
		return s.State != sandbox.Running || len(m.only) > 0 && !slices.Contains(m.only, s.Name) && !slices.Contains(m.only, string(s.ID)) ||
			!resource.HasLabels(s.Labels, m.labels) || !m.filters.Match(s)
	})
	if err := m.open(ctx, all); err != nil {
		return nil, err
	}
	now := make([]sandbox.Usage, len(all))
	running := make([][]sandbox.ProcessInfo, len(all))
	failed := make([]error, len(all))
	slots := make(chan struct{}, atOnce)
	var asked sync.WaitGroup
	for i, s := range all {
		sb := m.sandboxes[s.ID]
		if sb == nil {
			failed[i] = ctx.Err()
			continue
		}
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			short, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			now[i], failed[i] = sb.Usage(short)
			if b, ok := sb.(interface {
				Processes(ctx context.Context) ([]sandbox.ProcessInfo, error)
			}); ok && m.details && failed[i] == nil {
				list, _ := b.Processes(short) // one that cannot be asked shows none
				running[i] = slices.DeleteFunc(list, func(p sandbox.ProcessInfo) bool { return !p.Running })
			}
		})
	}
	asked.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return m.loads(all, now, failed, running)
}

// open finds the sandboxes that are new, and forgets those that are gone.
func (m *meter) open(ctx context.Context, all []sandbox.Sandbox) error {
	old := m.sandboxes
	m.sandboxes = make(map[sandbox.ID]usager, len(all))
	for _, s := range all {
		if b, known := old[s.ID]; known {
			m.sandboxes[s.ID] = b
			continue
		}
		b, err := m.target.Find(ctx, string(s.ID))
		if err != nil {
			if target.Missing(err) {
				continue
			}
			return err
		}
		if u, ok := b.(usager); ok {
			m.sandboxes[s.ID] = u
		}
	}
	return nil
}

// loads makes rates of two samples.
func (m *meter) loads(all []sandbox.Sandbox, now []sandbox.Usage, failed []error, running [][]sandbox.ProcessInfo) ([]load, error) {
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
			sandbox: s, running: running[i],
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
