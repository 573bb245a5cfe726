package e2bapi

import (
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// pause pauses a sandbox to disk. If it is already paused, the status is 409.
func (h *sandboxAPI) pause(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Memory *bool `json:"memory"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	if state, _ := stateOf(&s); state == "paused" {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: publicID(s.ID), Message: "the sandbox is paused already"}
	}
	if req.Memory == nil || *req.Memory {
		_, err = h.lifecycle.Pause(r.Context(), string(s.ID), true)
	} else {
		_, err = h.lifecycle.Stop(r.Context(), string(s.ID), 0)
	}
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

const maxForks = 100

// forked is one of the requested copies.
type forked struct {
	Sandbox *made    `json:"sandbox,omitempty"`
	Error   *problem `json:"error,omitempty"`
}

func (h *sandboxAPI) fork(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Timeout *int64 `json:"timeout"`
		Count   *int   `json:"count"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	timeout, err := seconds(req.Timeout, timeoutV1)
	if err != nil {
		return err
	}
	count := 1
	if req.Count != nil {
		count = *req.Count
	}
	if count < 1 || count > maxForks {
		return invalid("count", "%d is not between 1 and %d", count, maxForks)
	}
	s, err := h.find(r.Context(), r)
	if err != nil {
		return err
	}
	if state, _ := stateOf(&s); state == "paused" {
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: publicID(s.ID), Message: "the sandbox is paused", Hint: "connect to it first"}
	}
	copies, err := h.lifecycle.Fork(r.Context(), string(s.ID), durable.ForkRequest{Count: count})
	if err != nil {
		return err
	}
	out := make([]forked, len(copies))
	for i := range copies {
		one, err := h.sandboxes.Expire(r.Context(), string(copies[i].ID), h.opts.Now().Add(timeout), false)
		if err != nil {
			out[i].Error = newProblem(err)
			continue
		}
		m := h.made(r.Context(), &one)
		out[i].Sandbox = &m
	}
	writeJSON(w, http.StatusCreated, out)
	return nil
}
