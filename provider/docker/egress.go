package docker

import (
	"context"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// EgressAbility implements driver.EgressEnforcer. A container has either an
// unrestricted network or none.
func (*Provider) EgressAbility() enforce.Ability {
	return enforce.Ability{Kind: enforce.Switch}
}

// network returns the network of a container.
func (p *Provider) network(n sandbox.Network) (string, error) {
	refuse := func(message string) (string, error) {
		return "", &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "docker.create", Subject: "network", Message: message,
			Hint: "leave the network out: the sandbox has none",
		}
	}
	switch {
	case !n.Asked():
		return "none", nil
	case n.Plain == nil:
		return refuse("the rules were not converted for Docker")
	case n.Plain.Open:
		return p.opts.Network, nil
	case len(n.Plain.Allow) > 0:
		return refuse("Docker cannot let a container reach some addresses and not others")
	}
	return "none", nil
}

// joinable returns the network that a container with this mode must be
// connected to, or "" if the mode is not a network that can be connected later.
func joinable(mode container.NetworkMode) string {
	if mode.IsBridge() || mode.IsUserDefined() {
		return string(mode)
	}
	return ""
}

// joined reports whether networks contains the network with this name or ID.
func joined(networks map[string]*network.EndpointSettings, name string) bool {
	for n, e := range networks {
		if n == name || e != nil && e.NetworkID == name {
			return true
		}
	}
	return false
}

// join connects the container to its network, unless it is connected. After a
// failure, the next call that needs the guest tries again.
func (in *Instance) join(ctx context.Context) error {
	if in.network == "" {
		return nil
	}
	in.apart.Store(true)
	c, err := in.p.inspect(ctx, in.id, in.name, false)
	if err != nil {
		return err
	}
	if c.NetworkSettings == nil || !joined(c.NetworkSettings.Networks, in.network) {
		_, err = in.p.api.NetworkConnect(ctx, in.network, client.NetworkConnectOptions{Container: in.name})
		// Another process may connect it at the same time.
		if err != nil && !strings.Contains(err.Error(), "already exists") {
			return in.unjoined(ctx, err)
		}
	}
	in.apart.Store(false)
	return nil
}

// unjoined explains why the container is not connected. A missing network does
// not mean that the container is gone.
func (in *Instance) unjoined(ctx context.Context, err error) error {
	err = in.known(ctx, err)
	if ctx.Err() != nil || sandbox.CodeOf(err) == sandbox.CodeGone {
		return err
	}
	code := sandbox.CodeOf(err)
	if code == sandbox.CodeNotFound {
		code = sandbox.CodeUnavailable
	}
	return &sandbox.Error{
		Code: code, Op: "docker.connect", Subject: in.network, Message: "the container cannot be connected to its network: " + err.Error(),
		Hint: "see docker network ls; if the network was removed, create it again", Cause: err,
	}
}
