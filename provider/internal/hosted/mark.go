package hosted

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// OwnerMark is the owner of a sandbox, stored in a file inside it because the service
// cannot store it. Its seal needs the account's key: what runs in a sandbox can
// remove the mark, but cannot make one that keeps its owner from ending it.
type OwnerMark struct {
	Scope     string // of the directory that adopted the sandbox last
	Adoptions int    // how often the sandbox was adopted
}

// markFile is where the mark is.
const markFile = "/.atoll-owner"

// ReadMark is a script that writes the mark, or nothing.
const ReadMark = "[ ! -f " + markFile + " ] || head -c 512 " + markFile

// seal returns the seal of a mark for one sandbox of the service.
func (c *Core) seal(sb string, m OwnerMark) string {
	text := identity.Account(c.API.Base, fmt.Sprintf("%s\nowner\n%s\n%s\n%d", c.Service.Credential().Key, sb, m.Scope, m.Adoptions))
	return text[strings.LastIndexByte(text, '#')+1:]
}

// ownerMark returns the mark of a sandbox. A mark that is missing or not sealed
// counts as none.
func (c *Core) ownerMark(ctx context.Context, sb string, in Inside) (m OwnerMark, err error) {
	text, err := in.Run(ctx, ReadMark)
	if err != nil || c.Service.Credential().Key == "" {
		return m, err
	}
	f := strings.SplitN(strings.TrimSpace(text), " ", 3)
	if len(f) != 3 || !identity.Valid(f[0]) {
		return m, nil
	}
	adoptions, err := strconv.Atoi(f[1])
	if found := (OwnerMark{f[0], adoptions}); err == nil && c.seal(sb, found) == f[2] {
		m = found
	}
	return m, nil
}

// setMark makes this directory the owner of a sandbox and returns the new number
// of adoptions, which is above after.
func (c *Core) setMark(ctx context.Context, b Sandbox, after int) (adoptions int, err error) {
	scope, err := c.Scope()
	if err != nil {
		return after, err
	}
	in := c.OpenInside(b)
	now, err := c.ownerMark(ctx, b.ID, in)
	if err != nil {
		return after, err
	}
	m := OwnerMark{scope, max(now.Adoptions, after) + 1}
	line := fmt.Sprintf("%s %d %s", m.Scope, m.Adoptions, c.seal(b.ID, m))
	_, err = in.Run(ctx, "printf '%s\\n' '"+line+"' >"+markFile+".new && mv -f "+markFile+".new "+markFile)
	return m.Adoptions, err
}

// marked returns driver.ErrElsewhere if a running sandbox has the mark of another
// directory that adopted it later. The mark of one that sleeps or does not answer
// cannot be read.
func (c *Core) marked(ctx context.Context, id sandbox.ID, b Sandbox, in Inside) error {
	scope, err := c.Scope()
	if err != nil || b.State != sandbox.Running {
		return err
	}
	m, err := c.ownerMark(ctx, b.ID, in)
	if err != nil {
		return ctx.Err() // a sandbox that is broken inside must still end
	}
	if m.Adoptions > c.Of(id, b.ID).Adoptions && m.Scope != scope {
		return driver.Elsewhere(id)
	}
	return nil
}
