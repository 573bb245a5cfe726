package docker

import (
	"context"
	"fmt"
	"strings"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// The name of a container records the state directory that owns it: names,
// unlike labels, can change. If another program chose the name, the owner is
// the directory that created the container.

func containerName(scope string, id sandbox.ID) string { return "atoll-" + scope + "-" + string(id) }

// ownerOf returns the scope of the directory that owns a container.
func ownerOf(labels map[string]string, names ...string) string {
	for _, name := range names {
		scope, ok := strings.CutSuffix(strings.TrimPrefix(name, "/atoll-"), "-"+labels[labelID])
		if ok && identity.Valid(scope) {
			return scope
		}
	}
	return labels[labelScope]
}

// Adopt implements driver.Adopter: it renames the container.
func (p *Provider) Adopt(ctx context.Context, spec *sandbox.Spec) error {
	ours, foreign, err := p.list(ctx, labelID+"="+string(spec.ID))
	switch {
	case err != nil || len(ours) > 0:
		return err
	case len(foreign) == 0:
		return p.gone(ctx, spec.ID)
	case len(foreign) > 1:
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "docker.adopt", Subject: string(spec.ID), Message: fmt.Sprintf("%d installations have a sandbox with this ID", len(foreign)),
		}
	}
	scope, err := p.scope()
	if err != nil {
		return err
	}
	_, err = p.api.ContainerRename(ctx, foreign[0].ID, client.ContainerRenameOptions{NewName: containerName(scope, spec.ID)})
	if err = p.explain(ctx, err); sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = p.gone(ctx, spec.ID)
	}
	return err
}

// mine refuses a container that another directory owns.
func (p *Provider) mine(id sandbox.ID, labels map[string]string, name string) error {
	scope, err := p.scope()
	if err == nil && ownerOf(labels, name) != scope {
		err = driver.Elsewhere(id)
	}
	return err
}
