package sessions

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// errGroupChanged means that a group got or lost a session meanwhile.
var errGroupChanged = errors.New("the group has changed")

// join makes a new session agree with the sessions of its group, because one
// sandbox serves all of them: it gets what it leaves out, and is refused if it
// asks for something else. with is the id of the session that it agrees with;
// empty: it is the first.
func (s *Service) join(ctx context.Context, row *store.Session, env map[string]string) (all map[string]string, with string, err error) {
	others, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Session, error) { return tx.Sessions().InGroup(ctx, row.Tenant, row.Group) })
	if err != nil || len(others) == 0 {
		return env, "", err
	}
	first := others[0]
	theirs, err := s.environment(&first)
	if err != nil {
		return nil, "", err
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if value, ok := theirs[name]; !ok || value != env[name] {
			return nil, "", disagrees(row, "environment variable "+name)
		}
	}
	if field := differs(row.Spec, first.Spec); field != "" {
		return nil, "", disagrees(row, field)
	}
	row.Spec, row.Provider = first.Spec, first.Provider // a Provider that is set is a field of Spec
	return theirs, first.ID, nil
}

// differs returns the name of a field of a Spec that is set and has another
// value in the Spec of the group. The environment is compared by its values.
func differs(asked, has sandbox.Spec) string {
	asked.Env, has.Env = nil, nil
	a, h := reflect.ValueOf(asked), reflect.ValueOf(has)
	for i := range a.NumField() {
		if !a.Field(i).IsZero() && !reflect.DeepEqual(a.Field(i).Interface(), h.Field(i).Interface()) {
			name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}

func disagrees(row *store.Session, what string) error {
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Subject: row.Name, Message: fmt.Sprintf("the sandbox of group %s has another %s", row.Group, what),
		Hint: "leave it out to use that sandbox as it is, or use another group",
	}
}

// unchanged checks, in the transaction that adds a session, that its group still
// begins with the session that it agrees with.
func unchanged(ctx context.Context, tx *store.Tx, row store.Session, with string) error {
	if _, err := tx.Tenants().Lock(ctx, row.Tenant); err != nil { // two first sessions must not differ
		return err
	}
	others, err := tx.Sessions().InGroup(ctx, row.Tenant, row.Group)
	if err == nil && (len(others) == 0) != (with == "") || len(others) > 0 && others[0].ID != with {
		err = errGroupChanged
	}
	return err
}
