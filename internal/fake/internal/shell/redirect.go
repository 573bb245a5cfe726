package shell

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
)

// redirected runs f with redirections in force. After the builtin exec they
// stay in force.
func (s *Shell) redirected(redirs []*syntax.Redirect, f func()) {
	if len(redirs) == 0 {
		f()
		return
	}
	var saved []kernel.Saved
	for _, r := range redirs {
		n := target(r)
		saved = append(saved, s.p.Save(n))
		if err := s.redirect(n, r); err != nil {
			s.undo(saved)
			if !s.p.Dead() {
				s.p.Errorf("%v", err)
			}
			s.status = 1
			return
		}
	}
	keep := s.keepRedirections
	s.keepRedirections = false
	f()
	keepNow := s.keepRedirections
	s.keepRedirections = keep
	if keepNow {
		for _, old := range saved {
			s.p.Drop(old)
		}
		return
	}
	s.undo(saved)
}

func (s *Shell) undo(saved []kernel.Saved) {
	for i := len(saved) - 1; i >= 0; i-- {
		s.p.Restore(saved[i])
	}
}

// target is the descriptor that a redirection changes.
func target(r *syntax.Redirect) int {
	if r.N != nil {
		if n, err := strconv.Atoi(r.N.Value); err == nil {
			return n
		}
	}
	switch r.Op {
	case syntax.RdrIn, syntax.RdrInOut, syntax.DplIn, syntax.Hdoc, syntax.DashHdoc:
		return 0
	}
	return 1
}

func (s *Shell) redirect(n int, r *syntax.Redirect) error {
	switch r.Op {
	case syntax.Hdoc, syntax.DashHdoc:
		s.p.SetFD(n, kernel.Bytes(s.heredoc(r)))
		return nil
	case syntax.DplIn, syntax.DplOut:
		word := s.literal(r.Word)
		if word == "-" {
			s.p.SetFD(n, nil)
			return nil
		}
		from, err := strconv.Atoi(word)
		if err == nil {
			err = s.p.Dup(from, n)
		}
		if err != nil {
			return errors.New(word + ": bad file descriptor")
		}
		return nil
	}
	flags, ok := map[syntax.RedirOperator]int{
		syntax.RdrIn: os.O_RDONLY, syntax.RdrInOut: os.O_RDWR | os.O_CREATE,
		syntax.RdrOut: os.O_WRONLY | os.O_CREATE | os.O_TRUNC, syntax.RdrClob: os.O_WRONLY | os.O_CREATE | os.O_TRUNC,
		syntax.AppOut: os.O_WRONLY | os.O_CREATE | os.O_APPEND,
	}[r.Op]
	if !ok {
		return errors.New("the redirection " + r.Op.String() + " is not supported")
	}
	f, err := s.p.Open(s.literal(r.Word), flags, 0o666)
	if err != nil {
		return err
	}
	s.p.SetFD(n, f)
	return nil
}

// heredoc returns a here-document's text.
func (s *Shell) heredoc(r *syntax.Redirect) string {
	if r.Hdoc == nil {
		return ""
	}
	var doc string
	if lit := r.Hdoc.Lit(); quoted(r.Word) && lit != "" {
		doc = lit
	} else {
		doc = s.document(r.Hdoc)
	}
	if r.Op != syntax.DashHdoc {
		return doc
	}
	lines := strings.SplitAfter(doc, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], "\t")
	}
	return strings.Join(lines, "")
}

func quoted(w *syntax.Word) bool {
	for _, part := range w.Parts {
		switch part := part.(type) {
		case *syntax.SglQuoted, *syntax.DblQuoted:
			return true
		case *syntax.Lit:
			if strings.Contains(part.Value, `\`) {
				return true
			}
		}
	}
	return false
}
