package guard

import (
	"strings"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// AllowSpec returns an error if a caller who does not own the machine requests
// files or ports of the machine, or if any caller sets the ID.
func AllowSpec(who key.Principal, spec *sandbox.Spec) error {
	denied := func(what string) error {
		return &sandbox.Error{
			Code: sandbox.CodeDenied, Subject: what, Message: "only the owner of the machine may use its files",
			Hint: "copy the files into the sandbox instead",
		}
	}
	if spec.ID != "" {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "id", Message: "is assigned by the server"}
	}
	if who.UID != nil {
		return nil
	}
	if len(spec.Mounts) > 0 {
		return denied("mounts")
	}
	if len(spec.Ports) > 0 {
		return who.Allow(ops.PortPublish)
	}
	for _, local := range []string{"oci:", "docker-archive:", "dir:", "tar:"} {
		if strings.HasPrefix(spec.Image, local) {
			return denied("image")
		}
	}
	return nil
}
