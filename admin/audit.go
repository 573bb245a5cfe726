package admin

import (
	"context"
	"io"
	"net/http"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// PruneAudit removes the oldest records of a log. It is for the owner of the
// machine. It keeps the newest record, operations without an outcome, and
// records that still have to be sent to a collector. [Client.VerifyAudit] still
// works, because the hash of the last removed record is kept.
func (c *Client) PruneAudit(ctx context.Context, what operator.AuditPrune) (done operator.AuditPruned, err error) {
	return done, c.conn.Call(ctx, http.MethodPost, "/v1/audit/prune", nil, what, &done)
}

// VerifyAudit verifies the hash chain of the log.
func (c *Client) VerifyAudit(ctx context.Context) (report operator.AuditReport, err error) {
	return report, c.conn.Call(ctx, http.MethodGet, "/v1/audit/verify", nil, nil, &report)
}

// AuditFormat is a format for exporting the log.
type AuditFormat string

const (
	// AuditChained has one record per line, as it was hashed, with its hash.
	AuditChained AuditFormat = "json"
	// AuditOTLP has some hundred records per line as OTLP JSON, which OpenTelemetry
	// collectors can read from a file.
	AuditOTLP AuditFormat = "otlp-json"
)

// ExportAudit writes the events that match q, up to the present end of the log,
// as lines in a format. After an error the output is not complete. The fields
// After and Page of q are ignored.
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
