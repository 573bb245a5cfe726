package mcpserver

import (
	"context"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// The kinds of saved objects.
const (
	kindSnapshots = "snapshots"
	kindTemplates = "templates"
)

// kindArgs name a kind of saved objects.
type kindArgs struct {
	Kind string `json:"kind" jsonschema:"snapshots or templates"`
}

// savedArgs name a saved object.
type savedArgs struct {
	Snapshot string `json:"snapshot,omitempty" jsonschema:"name or id of a snapshot; this or template is needed"`
	Template string `json:"template,omitempty" jsonschema:"name of a template, NAME or NAME:TAG"`
}

type savedOut struct {
	Name    string    `json:"name"`
	ID      string    `json:"id,omitempty"`
	Memory  bool      `json:"memory,omitempty"`
	Bytes   int64     `json:"bytes"`
	Created time.Time `json:"created"`
}

type savedListOut struct {
	Saved []savedOut `json:"saved"`
	More  bool       `json:"more,omitempty"`
}

func (s *Server) savedTools() {
	add(s, "saved_list", "List snapshots or templates", "List what sandboxes can be started from.", looks, does(ops.SnapshotList).sometimes(ops.TemplateList), savedList)
	add(s, "saved_remove", "Remove a snapshot or template", "Remove a snapshot or a template. Sandboxes made from it stay.", removes, does(ops.SnapshotRemove).sometimes(ops.TemplateRemove), savedRemove)
}

func savedList(ctx context.Context, c *call, in kindArgs) (savedListOut, error) {
	out := savedListOut{Saved: []savedOut{}}
	switch in.Kind {
	case kindSnapshots:
		for s, err := range c.Snapshots(ctx, nil) {
			if err != nil {
				return savedListOut{}, err
			}
			if len(out.Saved) == maxList {
				out.More = true
				break
			}
			out.Saved = append(out.Saved, savedOut{Name: s.Name, ID: s.ID, Memory: s.Memory, Bytes: s.Size, Created: s.Created})
		}
		return out, nil
	case kindTemplates:
		all, err := c.Templates(ctx)
		if err != nil {
			return savedListOut{}, err
		}
		out.More = len(all) > maxList
		for _, t := range all[:min(len(all), maxList)] {
			out.Saved = append(out.Saved, savedOut{Name: t.Name + ":" + t.Tag, Memory: t.Snapshot != "", Bytes: t.Size, Created: t.Created})
		}
		return out, nil
	}
	return savedListOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "kind", Message: "is neither snapshots nor templates"}
}

func savedRemove(ctx context.Context, c *call, in savedArgs) (removeOut, error) {
	if (in.Snapshot == "") == (in.Template == "") {
		return removeOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "snapshot", Message: "give either snapshot or template"}
	}
	if in.Template != "" {
		if name, _, _ := strings.Cut(in.Template, ":"); sandbox.ValidateName(name) != nil {
			return removeOut{}, &sandbox.Error{
				Code: sandbox.CodeInvalid, Subject: "template", Message: "is not the name of a template",
				Hint: "call saved_list with the kind templates to see the names",
			}
		}
		return removeOut{Removed: in.Template}, c.RemoveTemplate(ctx, in.Template)
	}
	if err := sandbox.ValidateName(in.Snapshot); err != nil {
		return removeOut{}, &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "snapshot", Message: "is not the name or id of a snapshot",
			Hint: "call saved_list with the kind snapshots to see the names",
		}
	}
	return removeOut{Removed: in.Snapshot}, c.RemoveSnapshot(ctx, in.Snapshot)
}
