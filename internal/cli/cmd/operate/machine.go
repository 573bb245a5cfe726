package operate

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// MachineProgram is the program of a self-hosted machine, with its files in a
// directory.
type MachineProgram interface {
	// Enrol asks a daemon for an enrolment. show is called with the code to approve.
	Enrol(ctx context.Context, e MachineEnrolment, show func(code string, life time.Duration)) error
	// Serve serves the daemon until ctx or the enrolment ends.
	Serve(ctx context.Context, dir string, verbose bool) error
	Status(dir string) (MachineStatus, error)
	Pause(dir string) (MachineStatus, error)
	Resume(dir string) (MachineStatus, error)
	// Consent stores what the owner agrees to, with the text that was shown or, without
	// one, withdraws it.
	Consent(dir string, to operator.Consent, agreed string) (MachineStatus, error)
	Leave(ctx context.Context, dir string) error
}

// MachineEnrolment describes an enrolment.
type MachineEnrolment struct {
	Dir, URL, CA, Name string
	Whole              string // the directory of the mode whole-machine; empty: sandboxes
	Token              string
	Consents           map[operator.Consent]string // what the owner agreed to, with the texts
}

// MachineConsent is something that the owner of a machine agreed to.
type MachineConsent struct {
	To   operator.Consent `json:"to"`
	Text string           `json:"text"`
	At   time.Time        `json:"at"`
}

// MachineStatus says how the program of a machine is.
type MachineStatus struct {
	Machine   string           `json:"machine"`
	Name      string           `json:"name"`
	Tenant    string           `json:"tenant"`
	URL       string           `json:"url"`
	Mode      string           `json:"mode"`
	Directory string           `json:"directory,omitempty"`
	Consents  []MachineConsent `json:"consents"`
	Paused    bool             `json:"paused"`
	Running   bool             `json:"running"`
	Connected bool             `json:"connected"`
	Streams   int              `json:"streams"`
	Version   string           `json:"version,omitempty"`
}

// agreed returns the consents of a machine's owner.
func (s *MachineStatus) agreed() (all operator.Consents) {
	for _, c := range s.Consents {
		all = append(all, c.To)
	}
	return all.Known()
}

// MarshalJSON keeps the fields that consents had by themselves.
func (s MachineStatus) MarshalJSON() ([]byte, error) {
	type plain MachineStatus
	out := struct {
		plain
		Consent   string    `json:"consent"`
		Consented time.Time `json:"consented"`
		Screen    bool      `json:"screen"`
		Updates   bool      `json:"updates"`
	}{plain: plain(s), Screen: s.agreed().Has(operator.ConsentScreen), Updates: s.agreed().Has(operator.ConsentUpdates)}
	for _, c := range s.Consents {
		if string(c.To) == s.Mode {
			out.Consent, out.Consented = c.Text, c.At
		}
	}
	return json.Marshal(out)
}

// machineCommands are atoll machine.
type machineCommands struct {
	*target.Env
	machine MachineProgram // nil in a client
	self    string         // path of the program that the user called; empty: this one
}

func (a machineCommands) machineCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "machine", Short: "Use your own machine from a daemon elsewhere", GroupID: resource.GroupDaemon,
		Example: `  atoll machine ls`,
	}, a.joinCmd(), a.statusCmd(), a.pauseCmd(), a.resumeCmd(), a.leaveCmd(), a.updatesCmd(), a.screenCmd(), a.serviceCmd(),
		a.listCmd(), a.inspectCmd(), a.approveCmd(), a.inviteCmd(), a.revokeCmd())
}

// dir is the directory of the machine's files.
func (a machineCommands) dir() string { return filepath.Join(filepath.Dir(a.Socket()), "machine") }

func (a machineCommands) program() (MachineProgram, error) {
	if a.machine == nil {
		return nil, a.InEngine("this machine cannot be used by a daemon")
	}
	return a.machine, nil
}

// consentText is the text of the consent that an owner gives, for the daemon at url and
// a directory.
func consentText(to operator.Consent, url, whole string) string {
	switch url = "The daemon at " + url; to {
	case operator.ConsentWholeMachine:
		return url + ` may run ANY COMMAND AS YOU on this machine, beginning in ` + whole + `.
Such commands can read, change and send all your files, and use your accounts and
networks. Nothing isolates them.`
	case operator.ConsentScreen:
		return url + ` may SEE AND USE THE SCREEN of this machine: take pictures
of it, watch it, move the pointer, click and type, and read and write the clipboard.`
	case operator.ConsentUpdates:
		return url + ` may replace the program that serves it by newer ones,
which it signs. The key of that daemon is then enough to run any program as you.`
	}
	return url + ` may make sandboxes on this machine. They have a kernel of their own,
see the machine's programs but none of your files, and reach no private network.
They use its processors, memory and disk.`
}

func (a machineCommands) joinCmd() *cobra.Command {
	var e MachineEnrolment
	var tokenFile string
	var yes, verbose, only, screen bool
	cmd := &cobra.Command{
		Use:   "join [URL]",
		Short: "Let a daemon elsewhere use this machine",
		Long: `Join enrols this machine with the daemon at URL, and serves it until it is
interrupted. The machine makes only outbound connections. Without --token-file, it
shows a code that somebody approves with: atoll machine approve CODE

Without a URL, it serves the daemon that the machine is enrolled with. What you
agree to is shown first and stored; end it at any time with: atoll machine leave`,
		Example: `  atoll machine join tls://atoll.example.com:4222
  atoll machine join --whole-machine ~/agent --screen tls://atoll.example.com:4222
  atoll machine join`,
		Args: cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&e.Name, "name", "", "name of this machine (default: its host name)")
	cmd.Flags().StringVar(&e.Whole, "whole-machine", "", "offer commands with all your rights, beginning in this directory, and not sandboxes")
	cmd.Flags().BoolVar(&screen, "screen", false, "share the screen of the whole machine, too")
	cmd.Flags().StringVar(&e.CA, "ca", "", "file with certificates to trust for the daemon, in PEM")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with a token from: atoll machine invite")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "agree without a question")
	cmd.Flags().BoolVar(&only, "enrol-only", false, "enrol and end")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "log more")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		p, err := a.program()
		if err != nil {
			return err
		}
		switch {
		case screen && e.Whole == "":
			return term.BadFlag("screen", "needs --whole-machine, because sandboxes have screens of their own; to share that of a machine that has joined: atoll machine screen on")
		case len(args) == 0 && e.Whole != "":
			return term.BadFlag("whole-machine", "needs a URL to join")
		case len(args) == 1:
			e.Dir, e.URL = a.dir(), args[0]
			if err := a.enrol(ctx, p, e, tokenFile, screen, yes); err != nil {
				return err
			}
		}
		if only {
			return nil
		}
		s, err := p.Status(a.dir())
		if err != nil {
			return err
		}
		a.Notef("atoll: serving %s with this machine, %s, mode %s\n", s.URL, s.Name, s.Mode)
		return p.Serve(ctx, a.dir(), verbose)
	}
	return cmd
}

func (a machineCommands) enrol(ctx context.Context, p MachineProgram, e MachineEnrolment, tokenFile string, screen, yes bool) error {
	if e.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return err
		}
		e.Name, _, _ = strings.Cut(strings.ToLower(host), ".")
	}
	if err := sandbox.ValidateName(e.Name); err != nil {
		return term.BadFlag("name", "%v", err)
	}
	if e.Whole != "" {
		dir, err := filepath.Abs(e.Whole)
		if err != nil {
			return err
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return term.BadFlag("whole-machine", "%s is no directory", dir)
		}
		e.Whole = dir
	}
	if tokenFile != "" {
		text, err := os.ReadFile(tokenFile)
		if err != nil {
			return term.BadFlag("token-file", "%v", err)
		}
		e.Token = strings.TrimSpace(string(text))
	}
	asks, flags := operator.Consents{operator.ConsentSandboxes}, ""
	if e.Whole != "" {
		asks, flags = operator.Consents{operator.ConsentWholeMachine}, "--whole-machine "
	}
	if screen {
		asks, flags = append(asks, operator.ConsentScreen), flags+"--screen "
	}
	e.Consents = map[operator.Consent]string{}
	var texts []string
	for _, to := range asks {
		e.Consents[to] = consentText(to, e.URL, e.Whole)
		texts = append(texts, e.Consents[to])
	}
	if err := a.agree("machine.join", yes, texts...); err != nil {
		return err
	}
	err := p.Enrol(ctx, e, func(code string, life time.Duration) {
		a.Notef("The code is %s. It waits %d minutes for approval at the daemon: atoll machine approve %s%s\n", code, int(life.Minutes()), flags, code)
	})
	if err != nil || !screen {
		return err
	}
	s, err := p.Status(e.Dir)
	if err == nil && !s.agreed().Has(operator.ConsentScreen) {
		a.Notef("The screen is not shared: whoever approved the machine did not take it. Share it with: atoll machine screen on\n")
	}
	return err
}

// own makes a command that shows or changes how the program of this machine is.
func (a machineCommands) own(cmd *cobra.Command, act func(p MachineProgram) (MachineStatus, error)) *cobra.Command {
	var asJSON bool
	cmd.Args = cobra.NoArgs
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(context.Context, []string) error {
		p, err := a.program()
		if err != nil {
			return err
		}
		s, err := act(p)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(s)
		}
		state := "not running; serve with: atoll machine join"
		switch {
		case s.Paused:
			state = "paused; go on with: atoll machine resume"
		case s.Connected:
			state = fmt.Sprintf("connected, with %d connections of the daemon", s.Streams)
		case s.Running:
			state = "connecting"
		}
		return a.Table("NAME MODE DIRECTORY DAEMON VERSION CONSENTS STATE", [][]string{{s.Name, s.Mode, s.Directory, s.URL, s.Version, s.agreed().String(), state}})
	})
	return cmd
}

func (a machineCommands) statusCmd() *cobra.Command {
	return a.own(&cobra.Command{
		Use: "status", Short: "Show what this machine offers, and whether it is connected", Example: `  atoll machine status --json`,
	}, func(p MachineProgram) (MachineStatus, error) { return p.Status(a.dir()) })
}

func (a machineCommands) pauseCmd() *cobra.Command {
	return a.own(&cobra.Command{
		Use: "pause", Short: "Stop everything that the daemon does on this machine, at once",
		Long: `Pause ends the connection and stops all commands at once: those of a whole machine
end, and sandboxes are paused. It lasts until: atoll machine resume`,
		Example: `  atoll machine pause`,
	}, func(p MachineProgram) (MachineStatus, error) { return p.Pause(a.dir()) })
}

func (a machineCommands) resumeCmd() *cobra.Command {
	return a.own(&cobra.Command{Use: "resume", Short: "End a pause", Example: `  atoll machine resume`},
		func(p MachineProgram) (MachineStatus, error) { return p.Resume(a.dir()) })
}

func (a machineCommands) leaveCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "leave", Short: "End the enrolment of this machine, with its sandboxes and commands", Args: cobra.NoArgs,
		Example: `  atoll machine leave`,
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		p, err := a.program()
		if err != nil {
			return err
		}
		return p.Leave(ctx, a.dir())
	})
	return cmd
}

func (a machineCommands) updatesCmd() *cobra.Command {
	return a.consentCmd(consent{
		&cobra.Command{Use: "updates", Short: "Let the daemon update the program of this machine, or not", Example: `  atoll machine updates on`},
		&cobra.Command{
			Use: "on", Short: "Let the daemon's newer programs serve this machine", Example: `  atoll machine updates on`,
			Long: `On lets newer programs of the daemon serve this machine. They are signed by the
daemon that it joined, and never older than what ran here. A program begins when
the machine has no sandbox; if it does not come up, the former one goes on.

What you agree to is shown first and stored.`,
		},
		&cobra.Command{
			Use: "off", Short: "Take no more programs of the daemon", Example: `  atoll machine updates off`,
			Long: `Off takes no more programs of the daemon. The one that serves this machine stays,
until you install a newer one, or leave the daemon.`,
		},
		operator.ConsentUpdates,
	})
}

func (a machineCommands) screenCmd() *cobra.Command {
	return a.consentCmd(consent{
		&cobra.Command{Use: "screen", Short: "Let the daemon see and use the screen of this machine, or not", Example: `  atoll machine screen on`},
		&cobra.Command{
			Use: "on", Short: "Share the screen of this machine", Example: `  atoll machine screen on`,
			Long: `On shares the screen of a machine that is offered as a whole: callers who may use
computers see it, move the pointer, click and type. It is the screen on which
atoll machine join was started. Commands that run on the machine end.

What you agree to is shown first and stored.`,
		},
		&cobra.Command{
			Use: "off", Short: "Share the screen no longer", Example: `  atoll machine screen off`,
			Long: `Off ends what "on" began, at once. Commands that run on the machine end.`,
		},
		operator.ConsentScreen,
	})
}

// consent is something that the owner of a machine agrees to by itself.
type consent struct {
	noun, on, off *cobra.Command
	to            operator.Consent
}

func (a machineCommands) consentCmd(c consent) *cobra.Command {
	var yes bool
	on := a.own(c.on, func(p MachineProgram) (MachineStatus, error) {
		s, err := p.Status(a.dir())
		if err != nil {
			return s, err
		}
		text := consentText(c.to, s.URL, s.Directory)
		if err := a.agree("machine."+c.noun.Name(), yes, text); err != nil {
			return s, err
		}
		return p.Consent(a.dir(), c.to, text)
	})
	on.Flags().BoolVarP(&yes, "yes", "y", false, "agree without a question")
	return resource.Parent(c.noun, on, a.own(c.off, func(p MachineProgram) (MachineStatus, error) { return p.Consent(a.dir(), c.to, "") }))
}

// agree shows the text of the consent, and asks.
func (a machineCommands) agree(op string, yes bool, texts ...string) error {
	for _, text := range texts {
		a.Notef("%s\n", text)
	}
	if yes {
		return nil
	}
	a.Notef("Do you agree? Write yes: ")
	line, _ := bufio.NewReader(a.Stdin).ReadString('\n')
	if strings.TrimSpace(line) != "yes" {
		return &sandbox.Error{Code: sandbox.CodeDenied, Op: op, Message: "you did not agree", Hint: "to agree without a question: --yes"}
	}
	return nil
}

func (a machineCommands) serviceCmd() *cobra.Command {
	install := &cobra.Command{
		Use: "install", Short: "Write a systemd user unit that serves the daemon", Args: cobra.NoArgs,
		Long: `Install writes ~/.config/systemd/user/atoll-machine.service, which runs atoll
machine join for the enrolment of this machine. It starts nothing.`,
		Example: `  atoll machine service install`,
	}
	install.RunE = resource.Interruptible(func(context.Context, []string) error {
		p, err := a.program()
		if err != nil {
			return err
		}
		if _, err := p.Status(a.dir()); err != nil {
			return err
		}
		program := a.self
		if program == "" {
			if program, err = os.Executable(); err != nil {
				return err
			}
		}
		config, err := os.UserConfigDir()
		if err != nil {
			return err
		}
		path := filepath.Join(config, "systemd", "user", "atoll-machine.service")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(machineUnit(program, filepath.Dir(a.Socket()))), 0o600); err != nil {
			return err
		}
		a.Notef("Start it now and after every login with: systemctl --user enable --now atoll-machine\nFor a machine without a login: loginctl enable-linger\n")
		return a.Println(path)
	})
	return resource.Parent(&cobra.Command{Use: "service", Short: "Serve the daemon in the background", Example: `  atoll machine service install`}, install)
}

// machineUnit is a systemd unit. Its program ends gracefully, and is started
// again unless the enrolment has ended.
func machineUnit(program, state string) string {
	quoted := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(s) + `"`
	}
	return `[Unit]
Description=Atoll: this machine serves a daemon
ConditionPathExists=` + strings.ReplaceAll(filepath.Join(state, "machine", "enrolment.json"), "%", "%%") + `

[Service]
ExecStart=` + quoted(program) + " --state-dir " + quoted(state) + ` machine join
Restart=on-failure
RestartSec=10
KillMode=mixed
Delegate=yes

[Install]
WantedBy=default.target
`
}

func (a machineCommands) listCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "ls", Short: "List the machines that this daemon may use", Args: cobra.NoArgs, Example: `  atoll machine ls`,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		all, err := c.Admin().Machines(ctx)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(append([]operator.Machine{}, all...))
		}
		rows := make([][]string, 0, len(all))
		for _, m := range all {
			state := string(m.State)
			if m.State == operator.MachineActive {
				state = m.Liveness
			}
			rows = append(rows, []string{m.ID, m.Name, m.Mode, m.Consents.String(), state, m.Provider, term.Ago(m.Created)})
		}
		return a.Table("ID NAME MODE CONSENTS STATE PROVIDER CREATED", rows)
	})
	return cmd
}

func (a machineCommands) inspectCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "inspect MACHINE", Short: "Describe a machine as JSON", Args: cobra.ExactArgs(1), Example: `  atoll machine inspect laptop`,
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		m, err := c.Admin().Machine(ctx, args[0])
		if err != nil {
			return err
		}
		return a.PrintJSON(m)
	})
	return cmd
}

func (a machineCommands) approveCmd() *cobra.Command {
	var whole, screen, asJSON bool
	cmd := &cobra.Command{
		Use: "approve CODE", Short: "Approve a machine that shows a code", Args: cobra.ExactArgs(1),
		Long: `Approve shows which machine waits with the code, and makes it one of this daemon's.
Compare the key with the one that the machine's owner tells you, if in doubt.

You must agree to the mode whole-machine with --whole-machine. If you leave out
--screen, the machine is approved, but it does not share its screen.`,
		Example: `  atoll machine approve ABCD-EFGH`,
	}
	cmd.Flags().BoolVar(&whole, "whole-machine", false, "agree that agents run commands with all rights of the machine's owner")
	cmd.Flags().BoolVar(&screen, "screen", false, "take the screen that the machine offers")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		m, err := c.Admin().LookupMachine(ctx, args[0])
		if err != nil {
			return err
		}
		a.Notef("The machine %s (%s, %s) offers the mode %s %s, with the key %s. Its owner agreed to: %s.\n", m.Name, m.OS, m.Arch, m.Mode, m.Directory, m.Key, m.Consents)
		asks := m.Consents
		m, err = c.Admin().ApproveMachine(ctx, operator.MachineApproval{Code: args[0], Consents: chosen(whole, screen)})
		if err != nil {
			return err
		}
		if asks.Has(operator.ConsentScreen) && !screen {
			a.Notef("Its screen is not shared. Its owner can share it with: atoll machine screen on\n")
		}
		if asJSON {
			return a.PrintJSON(m)
		}
		a.Notef("Make sandboxes there with: --provider %s\n", m.Provider)
		return a.Println(m.ID)
	})
	return cmd
}

// chosen returns the consents that flags name.
func chosen(whole, screen bool) (all operator.Consents) {
	if whole {
		all = append(all, operator.ConsentWholeMachine)
	}
	if screen {
		all = append(all, operator.ConsentScreen)
	}
	return all
}

func (a machineCommands) inviteCmd() *cobra.Command {
	var n operator.NewMachineToken
	var whole, screen, asJSON bool
	cmd := &cobra.Command{
		Use: "invite NAME", Short: "Make a token that enrols one machine without a code", Args: cobra.ExactArgs(1),
		Long: `Invite writes a token to standard output. It enrols one machine, once and within an
hour, with: atoll machine join --token-file FILE URL`,
		Example: `  atoll machine invite laboratory`,
	}
	cmd.Flags().BoolVar(&whole, "whole-machine", false, "allow commands with all rights of the machine's owner, too")
	cmd.Flags().BoolVar(&screen, "screen", false, "allow the screen of a whole machine, too")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		n.Name, n.Consents = args[0], chosen(whole, screen)
		t, err := c.Admin().InviteMachine(ctx, n)
		if err != nil {
			return err
		}
		if asJSON {
			return a.PrintJSON(t)
		}
		return a.Println(t.Token)
	})
	return cmd
}

func (a machineCommands) revokeCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke MACHINE...", SuggestFor: []string{"rm", "remove", "delete"}, Short: "Revoke machines, and close their connections", Args: cobra.MinimumNArgs(1),
		Example: `  atoll machine revoke laptop`,
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		c, err := a.MustDaemon(ctx)
		if err != nil {
			return err
		}
		for _, ref := range args {
			if err := c.Admin().RevokeMachine(ctx, ref); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}
