// Package routes serves requests by patterns that declare which operations they
// carry out.
package routes

import (
	"net/http"

	"github.com/atoll-run/atoll/internal/ops"
)

// Mux is an http.ServeMux whose patterns declare what they need.
type Mux struct {
	mux http.ServeMux
	all []*ops.Route
}

// Handle registers the handler of a route, whose name is the pattern. The
// caller may add to the route.
func (m *Mux) Handle(r ops.Route, h http.Handler) *ops.Route {
	m.mux.Handle(r.Name, h)
	m.all = append(m.all, &r)
	return &r
}

// Pass registers a handler with routes of its own, which declare what they
// need.
func (m *Mux) Pass(pattern string, h http.Handler) { m.mux.Handle(pattern, h) }

// ServeHTTP implements http.Handler.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// List returns the routes in the order in which they were registered.
func (m *Mux) List() []ops.Route {
	all := make([]ops.Route, len(m.all))
	for i, r := range m.all {
		all[i] = *r
	}
	return all
}
