package e2bapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// defaultUser is the user of requests that name none. If a sandbox lacks it, the
// user is root.
const defaultUser = "user"

// account is a user of a sandbox.
type account struct {
	name        string
	home, shell string
	dir         string // working directory of commands, and base of relative paths
	names       *names
}

// login is the entry of a user in /etc/passwd.
type login struct{ home, shell string }

// names are the users and groups of a sandbox.
type names struct {
	stamp  [2]sandbox.FileInfo
	tried  bool             // an attempt was made to create the user "user"
	seen   time.Time        // when the files had that stamp
	logins map[string]login // by the user's name
	users  map[uint32]string
	groups map[uint32]string
}

var nameFiles = [2]string{"/etc/passwd", "/etc/group"}

// maxNames is the maximum size of a file of names. Root of the sandbox can write
// anything to it.
const maxNames = 1 << 20

// maxAccounts is the maximum number of sandboxes whose names are cached.
const maxAccounts = 1024

// accountCache caches the names of sandboxes until their files change.
type accountCache struct {
	mu    sync.Mutex
	known map[sandbox.ID]*names
}

// lately is how long commands may use cached names without a check for changes,
// if the user exists in them. A check is slow compared to a short command.
const lately = time.Second

// findLately is find for callers that need only the name of the user.
func (c *accountCache) findLately(ctx context.Context, sb Sandbox, user string, def defaults) (account, error) {
	c.mu.Lock()
	n := c.known[sb.ID()]
	fresh := n != nil && time.Since(n.seen) < lately
	c.mu.Unlock()
	if fresh {
		if a, err := n.account(user, def); err == nil && !n.lacks(user, def) {
			return a, nil
		}
	}
	return c.find(ctx, sb, user, def)
}

// find returns a user of a sandbox by name.
func (c *accountCache) find(ctx context.Context, sb Sandbox, user string, def defaults) (account, error) {
	n, err := c.names(ctx, sb)
	if err != nil {
		return account{}, err
	}
	if n.lacks(user, def) {
		if makeUser(ctx, sb) == nil {
			made, err := c.names(ctx, sb)
			if err != nil {
				return account{}, err
			}
			n = made
		}
		c.mu.Lock()
		n.tried = true
		c.mu.Unlock()
	}
	return n.account(user, def)
}

// defaults are the user and the directory of a sandbox's template, for requests
// that name none. Empty: the user "user", and the home of the user.
type defaults struct{ user, dir string }

// defaultsOf returns the defaults of a sandbox.
func defaultsOf(s *sandbox.Sandbox) defaults {
	return defaults{s.Labels[labelUser], s.Labels[labelDir]}
}

// lacks reports whether the default user is needed but does not exist, and no
// attempt was made to create it.
func (n *names) lacks(user string, def defaults) bool {
	_, there := n.logins[defaultUser]
	return user == "" && def.user == "" && !there && !n.tried
}

// makeUser creates the user "user" in a sandbox whose image lacks it.
func makeUser(ctx context.Context, sb Sandbox) error {
	_, err := output(ctx, sb, sandbox.Command{Args: userCommand(defaultUser), User: "root", Dir: "/"})
	return err
}

// mayMake reports whether a build makes a user that the image lacks. Names are
// those that adduser accepts by default. The user root always exists.
func mayMake(name string) bool {
	return name != "root" && userName().MatchString(name)
}

var userName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`) })

// userCommand returns a command for root that makes a user, unless it exists.
func userCommand(name string) []string { return []string{"/bin/sh", "-c", userScript, "sh", name} }

// userScript makes the user $1 with the tools that every image has. Like the
// user of E2B's images, it may use sudo without a password.
const userScript = `grep -q "^$1:" /etc/passwd 2>/dev/null && exit 0
set -e
id=1000
while grep -q "^[^:]*:[^:]*:$id:" /etc/passwd /etc/group 2>/dev/null; do id=$((id+1)); done
shell=/bin/bash
[ -x $shell ] || shell=/bin/sh
grep -q "^$1:" /etc/group 2>/dev/null || echo "$1:x:$id:" >>/etc/group
echo "$1:x:$id:$id::/home/$1:$shell" >>/etc/passwd
mkdir -p "/home/$1"
[ ! -d /etc/skel ] || cp -R /etc/skel/. "/home/$1/" 2>/dev/null || true
chown -R $id:$id "/home/$1"
if [ -d /etc/sudoers.d ]; then
	echo "$1 ALL=(ALL) NOPASSWD:ALL" >"/etc/sudoers.d/$1"
	chmod 440 "/etc/sudoers.d/$1"
fi`

// account returns a user by name, or the default user.
func (n *names) account(user string, def defaults) (account, error) {
	if user == "" || user == def.user {
		return n.ownAccount(def)
	}
	l, ok := n.logins[user]
	if !ok {
		return account{}, unauthorized("invalid username: '" + clip(user) + "'")
	}
	return account{user, l.home, l.shell, l.home, n}, nil
}

// ownAccount returns the default user.
func (n *names) ownAccount(def defaults) (account, error) {
	user, _, _ := strings.Cut(cmp.Or(def.user, defaultUser), ":")
	if id, err := strconv.ParseUint(user, 10, 32); err == nil {
		user = nameOf(n.users, uint32(id))
	}
	l, ok := n.logins[user]
	if !ok && def.user != "" {
		return account{}, unauthorized("invalid username: '" + clip(user) + "'")
	} else if !ok {
		user, l = "root", n.logins["root"]
	}
	return account{user, l.home, l.shell, cmp.Or(def.dir, l.home), n}, nil
}

func (c *accountCache) names(ctx context.Context, sb Sandbox) (*names, error) {
	now := time.Now()
	stamp, err := stampOf(ctx, sb)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	old := c.known[sb.ID()]
	same := old != nil && old.stamp == stamp
	if same {
		old.seen = now
	}
	c.mu.Unlock()
	if same {
		return old, nil
	}
	n := &names{stamp: stamp, seen: now, logins: map[string]login{"root": {"/root", defaultShell}}, users: map[uint32]string{0: "root"}, groups: map[uint32]string{0: "root"}}
	for i, file := range nameFiles {
		text, err := readNames(ctx, sb, file)
		if err != nil {
			return nil, err
		}
		n.parse(i, text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxAccounts {
		c.known = map[sandbox.ID]*names{}
	}
	c.known[sb.ID()] = n
	return n, nil
}

// stampOf returns the state of both files.
func stampOf(ctx context.Context, sb Sandbox) (stamp [2]sandbox.FileInfo, err error) {
	var failed [2]error
	var work sync.WaitGroup
	for i, file := range nameFiles {
		work.Go(func() { stamp[i], failed[i] = sb.Files().Stat(ctx, file) })
	}
	work.Wait()
	for i, err := range failed {
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			stamp[i], failed[i] = sandbox.FileInfo{}, nil
		}
	}
	return stamp, errors.Join(failed[0], failed[1])
}

// readNames reads a file of names. A file that cannot be read is empty.
func readNames(ctx context.Context, sb Sandbox, file string) (string, error) {
	r, _, err := sb.Files().Read(ctx, file, driver.ReadOptions{Length: maxNames})
	if code := sandbox.CodeOf(err); code == sandbox.CodeNotFound || code == sandbox.CodeInvalid {
		return "", nil
	} else if err != nil {
		return "", err
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, maxNames))
	return string(text), err
}

// parse parses /etc/passwd (0) or /etc/group (1). The first entry with a name or
// a number counts.
func (n *names) parse(which int, text string) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 3 || f[0] == "" {
			continue
		}
		id, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil {
			continue
		}
		numbers := n.users
		if which == 1 {
			numbers = n.groups
		}
		if _, ok := numbers[uint32(id)]; !ok {
			numbers[uint32(id)] = f[0]
		}
		if which == 0 && len(f) >= 6 {
			if _, ok := n.logins[f[0]]; !ok || f[0] == "root" {
				n.logins[f[0]] = login{path.Clean("/" + f[5]), shellOf(f)}
			}
		}
	}
}

// defaultShell is the shell of a user without one.
const defaultShell = "/bin/sh"

func shellOf(fields []string) string {
	if len(fields) > 6 && fields[6] != "" {
		return fields[6]
	}
	return defaultShell
}

func nameOf(names map[uint32]string, id uint32) string {
	if name, ok := names[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// path returns the absolute path for a path that a user wrote.
func (a account) path(p string) (string, error) {
	switch {
	case p == "~":
		p = a.home
	case strings.HasPrefix(p, "~/"):
		p = a.home + p[1:]
	case strings.HasPrefix(p, "~"):
		return "", invalid("path", "%.80q: the home of another user cannot be named so", p)
	case !strings.HasPrefix(p, "/"):
		p = a.dir + "/" + p
	}
	p = path.Clean(p)
	return p, sandbox.ValidatePath("path", p)
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
