package superserve

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Access to a preview.
const (
	accessPublic  = "public"
	accessPrivate = "private"
)

const (
	minPreview      = 1024
	reservedPreview = 49983 // used by the service
	previewLife     = 24 * time.Hour
	undoing         = 30 * time.Second
)

// published is a port that the service publishes.
type published struct {
	Port   uint16 `json:"port"`
	Access string `json:"access"`
}

var _ driver.Previewer = (*Instance)(nil)

// previewURL returns the URL of a published port, below the domain of the data API.
func (in *Instance) previewURL(port uint16) (string, error) {
	if port < minPreview || port == reservedPreview {
		return "", &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "port", Message: "the service publishes ports from 1024 to 65535, except 49983",
		}
	}
	data := in.p.api.data
	host := data.Host
	if label, domain, _ := strings.Cut(host, "."); strings.Contains(label, placeholder) {
		host = domain
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	if net.ParseIP(strings.Trim(name, "[]")) != nil || strings.Contains(host, placeholder) {
		return "", &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "data URL", Message: "previews need a data URL with a domain name", Hint: "set SUPERSERVE_DATA_URL to a URL with a domain name",
		}
	}
	return data.Scheme + "://" + strconv.Itoa(int(port)) + "-" + in.Sandbox + "." + host, nil
}

func (in *Instance) previewPath() string { return "/sandboxes/" + in.Sandbox + "/preview-ports" }

// Preview implements driver.Previewer.
func (in *Instance) Preview(ctx context.Context, req sandbox.PreviewRequest) (sandbox.Preview, error) {
	address, err := in.previewURL(req.Port)
	if err != nil {
		return sandbox.Preview{}, err
	}
	before, err := in.Previews(ctx)
	if err != nil {
		return sandbox.Preview{}, err
	}
	p := sandbox.Preview{Port: req.Port, URL: address, Public: req.Public}
	if err = in.publish(ctx, &p); err == nil && !p.Public {
		err = in.token(ctx, &p)
	}
	if err == nil {
		return p, nil
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
	defer cancel()
	if i := slices.IndexFunc(before, func(b sandbox.Preview) bool { return b.Port == req.Port }); i < 0 {
		_ = in.Unpreview(late, req.Port) // it may not have been published
	} else {
		_ = in.publish(late, &before[i])
	}
	return sandbox.Preview{}, in.Explain(ctx, err)
}

// publish publishes a port and checks that its access is as requested.
func (in *Instance) publish(ctx context.Context, p *sandbox.Preview) error {
	access := accessPrivate
	if p.Public {
		access = accessPublic
	}
	var made published
	err := in.p.api.Call(ctx, http.MethodPost, in.previewPath(), published{p.Port, access}, &made)
	if err == nil && made != (published{p.Port, access}) {
		err = in.p.api.ProtocolError("the service does not show the port as it was asked to")
	}
	return err
}

// token gets a token for a port.
func (in *Instance) token(ctx context.Context, p *sandbox.Preview) error {
	var made struct {
		Token   string    `json:"token"`
		Header  string    `json:"header"`
		Port    uint16    `json:"port"`
		Expires time.Time `json:"expires_at"`
	}
	path := in.previewPath() + "/" + strconv.Itoa(int(p.Port)) + "/token"
	err := in.p.api.Call(ctx, http.MethodPost, path, map[string]any{"expires_in_seconds": int64(previewLife / time.Second)}, &made)
	if err == nil && (made.Token == "" || made.Header == "" || made.Port != p.Port) {
		err = in.p.api.ProtocolError("the service gives no token for the port")
	}
	p.Token, p.Header, p.Expires = made.Token, made.Header, made.Expires
	return err
}

// Unpreview implements driver.Previewer.
func (in *Instance) Unpreview(ctx context.Context, port uint16) error {
	err := in.p.api.Remove(ctx, in.previewPath()+"/"+strconv.Itoa(int(port)))
	if missing(err) { // the port, or the sandbox
		_, err = in.p.api.get(ctx, in.Sandbox)
	}
	if err != nil {
		return in.Explain(ctx, err)
	}
	return nil
}

// Previews implements driver.Previewer.
func (in *Instance) Previews(ctx context.Context) ([]sandbox.Preview, error) {
	var all struct {
		Ports []published `json:"ports"`
	}
	if err := in.p.api.Call(ctx, http.MethodGet, in.previewPath(), nil, &all); err != nil {
		return nil, in.Explain(ctx, err)
	}
	out := make([]sandbox.Preview, 0, len(all.Ports))
	for _, p := range all.Ports {
		address, err := in.previewURL(p.Port)
		if err != nil {
			return nil, err
		}
		out = append(out, sandbox.Preview{Port: p.Port, URL: address, Public: p.Access == accessPublic})
	}
	slices.SortFunc(out, func(a, b sandbox.Preview) int { return cmp.Compare(a.Port, b.Port) })
	return out, nil
}
