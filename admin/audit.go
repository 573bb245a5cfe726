package admin

import (
	"context"
	"io"
	"net/http"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// PruneAudit removes the oldest records of a log. It is for the owner of the
// machine. The newest record, actions without an outcome, and what is still to
// be sent to a collector stay; [Client.VerifyAudit] goes on from what is kept of
// the last record that went.
func (c *Client) PruneAudit(ctx context.Context, what sandbox.AuditPrune) (done sandbox.AuditPruned, err error) {
	return done, c.conn.Call(ctx, http.MethodPost, "/v1/audit/prune", nil, what, &done)
}

// VerifyAudit checks that the log is as it was written.
func (c *Client) VerifyAudit(ctx context.Context) (report sandbox.AuditReport, err error) {
	return report, c.conn.Call(ctx, http.MethodGet, "/v1/audit/verify", nil, nil, &report)
}

// AuditFormat is a form in which the log is exported.
type AuditFormat string

const (
	// AuditChained is a record on a line as it was hashed, with its hash.
	AuditChained AuditFormat = "json"
	// AuditOTLP is some hundred records on a line in OTLP's JSON form, as
	// OpenTelemetry's collectors read it from a file.
	AuditOTLP AuditFormat = "otlp-json"
)

// ExportAudit writes the events that match, as far as they are written now, as
// lines in a format. After an error what was written is not whole. After and
// Page do not apply.
func (c *Client) ExportAudit(ctx context.Context, format AuditFormat, q sandbox.EventQuery, w io.Writer) error {
	q.After, q.Page = 0, 0
	query := client.EventQuery(q)
	query.Set("format", string(format))
	r, err := c.conn.Request(ctx, http.MethodGet, "/v1/audit/export", query, nil)
	if err != nil {
		return err
	}
	resp, err := c.conn.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return client.TransportError(ctx, err)
	}
	return nil
}
