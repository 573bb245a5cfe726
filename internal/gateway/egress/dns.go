package egress

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
)

const (
	dnsPort    = 53
	dnsTTL     = 60 // seconds
	maxDNS     = 4096
	dnsIdle    = 10 * time.Second // of a connection
	maxDNSTCP  = 128              // queries on one connection
	reverseTop = ".in-addr.arpa"
)

// errNotAQuery is returned for packets that get no response.
var errNotAQuery = errors.New("not a query")

// serveDNS answers datagrams until the stack is closed.
func (att *attachment) serveDNS(conn net.PacketConn) {
	buf := make([]byte, maxDNS)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			if att.life.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
				return
			}
			// A program in the sandbox closed its socket before an earlier response
			// arrived. Other programs still get theirs.
			continue
		}
		if answer, err := att.answerDNS(buf[:n]); err == nil {
			_, _ = conn.WriteTo(answer, from)
		}
	}
}

// serveDNSTCP answers the queries of one connection and closes it.
func (att *attachment) serveDNSTCP(conn net.Conn) {
	defer conn.Close()
	for range maxDNSTCP {
		_ = conn.SetDeadline(time.Now().Add(dnsIdle))
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		answer, err := att.answerDNS(query)
		if err != nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answerDNS answers a query without any outgoing query. A name that some rule
// can match gets a synthetic address; other names do not exist.
func (att *attachment) answerDNS(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil || head.Response {
		return nil, errNotAQuery
	}
	reply := dnsmessage.Header{
		ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired, RecursionAvailable: true,
	}
	q, err := p.Question()
	if err != nil {
		reply.RCode = dnsmessage.RCodeFormatError
		return buildDNS(reply, nil, nil)
	}
	if _, err := p.Question(); err != dnsmessage.ErrSectionDone || head.OpCode != 0 || q.Class != dnsmessage.ClassINET {
		reply.RCode = dnsmessage.RCodeNotImplemented
		return buildDNS(reply, &q, nil)
	}
	code, body := att.lookup(q)
	reply.RCode = code
	return buildDNS(reply, &q, body)
}

// lookup returns the record of a question.
func (att *attachment) lookup(q dnsmessage.Question) (dnsmessage.RCode, dnsmessage.ResourceBody) {
	asked := q.Name.String()
	if q.Type == dnsmessage.TypePTR {
		return att.lookupPTR(asked)
	}
	host, err := policy.ParseHost(asked)
	if err != nil || host.Name == "" || !att.policy.Load().CanResolve(host.Name) {
		att.tell(Event{Verdict: messages.Denied, Kind: "dns", Host: printable(asked), Reason: "no rule allows this name"})
		return dnsmessage.RCodeNameError, nil
	}
	if q.Type != dnsmessage.TypeA {
		// There are no IPv6 addresses, and other record types would need an outgoing
		// query. In particular, HTTPS records are not returned, because their ECH
		// keys would hide the server name.
		return dnsmessage.RCodeSuccess, nil
	}
	a, ok := att.names.addr(host.Name)
	if !ok {
		att.tell(Event{Verdict: messages.Limited, Kind: "dns", Host: host.Name, Reason: "the sandbox has looked up too many names"})
		return dnsmessage.RCodeServerFailure, nil
	}
	return dnsmessage.RCodeSuccess, &dnsmessage.AResource{A: a.As4()}
}

// lookupPTR returns the name behind a synthetic address.
func (att *attachment) lookupPTR(asked string) (dnsmessage.RCode, dnsmessage.ResourceBody) {
	reversed, ok := strings.CutSuffix(strings.ToLower(strings.TrimSuffix(asked, ".")), reverseTop)
	if !ok {
		return dnsmessage.RCodeNameError, nil
	}
	parts := strings.Split(reversed, ".")
	if len(parts) != 4 {
		return dnsmessage.RCodeNameError, nil
	}
	a, err := netip.ParseAddr(parts[3] + "." + parts[2] + "." + parts[1] + "." + parts[0])
	if err != nil {
		return dnsmessage.RCodeNameError, nil
	}
	name, ok := att.names.name(a)
	if !ok {
		return dnsmessage.RCodeNameError, nil
	}
	ptr, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return dnsmessage.RCodeServerFailure, nil
	}
	return dnsmessage.RCodeSuccess, &dnsmessage.PTRResource{PTR: ptr}
}

// buildDNS builds a response with at most one record.
func buildDNS(head dnsmessage.Header, q *dnsmessage.Question, body dnsmessage.ResourceBody) ([]byte, error) {
	m := dnsmessage.Message{Header: head}
	if q != nil {
		m.Questions = []dnsmessage.Question{*q}
		if body != nil {
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: dnsTTL}, Body: body,
			}}
		}
	}
	return m.Pack()
}

// printable escapes text from the sandbox for display.
func printable(s string) string {
	if len(s) > 255 {
		s = s[:255]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
