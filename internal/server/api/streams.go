package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// StreamPath is the path of the sockets of viewers. Their tokens authenticate
// them.
const StreamPath = "/v1/streams/"

const (
	// streamToken is the prefix of the subprotocol with a viewer's token, which is
	// offered in addition to subprotocol.
	streamToken = "atoll.token."

	maxWaiting = 128 // sockets without a token
)

// Streams opens sandboxes to viewers.
type Streams interface {
	Create(ctx context.Context, ref string, by viewing.StreamSession, n viewing.NewStream) (viewing.StreamAccess, error)
	// Renew returns a new token of a stream, for ttl seconds.
	Renew(ctx context.Context, ref string, by viewing.StreamSession, id string, ttl int64) (viewing.StreamAccess, error)
	List(ctx context.Context, ref string, by viewing.StreamSession) ([]viewing.Stream, error)
	Revoke(ctx context.Context, ref string, by viewing.StreamSession, id string) error
	// Redeem exchanges the one-time code of a stream's link, or an earlier token of
	// such a stream, for a token.
	Redeem(ctx context.Context, id string, with viewing.StreamRedemption) (viewing.StreamAccess, error)
	// Serve checks the token, serves the socket and closes it.
	Serve(ws *websocket.Conn, id, token string)
}

type streamInput struct {
	SandboxRef
	Body viewing.NewStream
}

type streamAccessOutput struct{ Body viewing.StreamAccess }

type streamsOutput struct {
	Body struct {
		Streams []viewing.Stream `json:"streams" doc:"by id, without tokens"`
	}
}

// StreamRef names a stream of a sandbox.
type StreamRef struct {
	SandboxRef
	ID string `path:"id" maxLength:"64" doc:"id of the stream"`
}

type streamRenewal struct {
	StreamRef
	Body struct {
		TTL int64 `json:"ttl,omitempty" minimum:"0" maximum:"86400" doc:"seconds during which the token opens sockets; 120 if it is left out"`
	}
}

type streamRedemption struct {
	ID   string `path:"id" maxLength:"64" doc:"id of the stream"`
	Body viewing.StreamRedemption
}

type routedKey struct{}

// routedBy returns the session whose request goes to a sandbox.
func routedBy(ctx context.Context) viewing.StreamSession {
	by, _ := ctx.Value(routedKey{}).(viewing.StreamSession)
	return by
}

func (a *API) streams() {
	const base = "/v1/sandboxes/{ref}/streams"
	create := sometimes(operation("createStream", http.MethodPost, base, "Streams", "Open a sandbox to viewers; the token is only in this response", ops.SandboxFind, ops.StreamView), ops.StreamControl)
	create.DefaultStatus = http.StatusCreated
	huma.Register(a.huma, create, func(ctx context.Context, in *streamInput) (*streamAccessOutput, error) {
		s, err := a.services.Streams.Create(ctx, in.Ref, routedBy(ctx), in.Body)
		return &streamAccessOutput{s}, a.problem(ctx, err)
	})
	huma.Register(a.huma, sometimes(operation("renewStream", http.MethodPost, base+"/{id}/token", "Streams", "Get a new token for a stream, and for the sandbox that serves its session now", ops.SandboxFind, ops.StreamList, ops.StreamView), ops.StreamControl),
		func(ctx context.Context, in *streamRenewal) (*streamAccessOutput, error) {
			s, err := a.services.Streams.Renew(ctx, in.Ref, routedBy(ctx), in.ID, in.Body.TTL)
			return &streamAccessOutput{s}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("listStreams", http.MethodGet, base, "Streams", "List the streams of a sandbox, with the number of their viewers", ops.SandboxFind, ops.StreamList),
		func(ctx context.Context, in *SandboxRef) (*streamsOutput, error) {
			all, err := a.services.Streams.List(ctx, in.Ref, routedBy(ctx))
			out := &streamsOutput{}
			out.Body.Streams = all
			return out, a.problem(ctx, err)
		})
	revoke := operation("revokeStream", http.MethodDelete, base+"/{id}", "Streams", "End a stream and close its sockets", ops.SandboxFind, ops.StreamRevoke)
	revoke.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, revoke, func(ctx context.Context, in *StreamRef) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Streams.Revoke(ctx, in.Ref, routedBy(ctx), in.ID))
	})
	redeem := open(sometimes(operation("redeemStream", http.MethodPost, StreamPath+"{id}/token", "Streams", "Exchange the one-time code of a link for the token of its stream, or its token for one of the sandbox that serves its session now", ops.StreamView), ops.StreamControl))
	redeem.MaxBodyBytes, redeem.BodyReadTimeout = 4<<10, entryTime
	huma.Register(a.huma, redeem, func(ctx context.Context, in *streamRedemption) (*streamAccessOutput, error) {
		s, err := a.services.Streams.Redeem(ctx, in.ID, in.Body)
		return &streamAccessOutput{s}, a.problem(ctx, err)
	})
	socket := open(operation("viewStream", http.MethodGet, StreamPath+"{id}", "Streams", "View a stream over a WebSocket; its token is in the first message or a subprotocol", ops.StreamView))
	waiting := make(chan struct{}, maxWaiting)
	a.raw(socket, nil, "", "websocket", func(w http.ResponseWriter, r *http.Request) error {
		return a.viewStream(w, r, waiting)
	})
}

// viewStream upgrades to a WebSocket and waits for its token. Package server
// has checked the Origin header already.
func (a *API) viewStream(w http.ResponseWriter, r *http.Request, waiting chan struct{}) error {
	if err := isWebSocket(r); err != nil {
		return err
	}
	select {
	case waiting <- struct{}{}:
	default:
		return &sandbox.Error{Code: sandbox.CodeExhausted, Message: "too many sockets wait for their token"}
	}
	ws, token, err := receiveToken(w, r)
	<-waiting
	if err != nil || ws == nil {
		return err
	}
	defer context.AfterFunc(r.Context(), func() { _ = ws.CloseNow() })()
	a.services.Streams.Serve(ws, r.PathValue("id"), token)
	return nil
}

func receiveToken(w http.ResponseWriter, r *http.Request) (ws *websocket.Conn, token string, err error) {
	for _, list := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(list, ",") {
			if t, ok := strings.CutPrefix(strings.TrimSpace(p), streamToken); ok {
				token = t
			}
		}
	}
	if ws, err = Upgrade(w, r); err != nil || ws == nil || token != "" {
		return ws, token, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), startTimeout)
	defer cancel()
	ws.SetReadLimit(8 << 10)
	kind, text, err := ws.Read(ctx)
	var first struct {
		Token string `json:"token"`
	}
	if err != nil || kind != websocket.MessageText || json.Unmarshal(text, &first) != nil || first.Token == "" {
		late := time.AfterFunc(lastWord, func() { _ = ws.CloseNow() })
		defer late.Stop()
		_ = ws.Close(websocket.StatusPolicyViolation, "unauthorized")
		return nil, "", nil
	}
	return ws, first.Token, nil
}

// withRoute records the session of a routed request, given by its id.
func withRoute(r *http.Request, session string, epoch int64) *http.Request {
	ctx := span.WithEpoch(r.Context(), session, epoch)
	return r.WithContext(context.WithValue(ctx, routedKey{}, viewing.StreamSession{Ref: session, Epoch: epoch}))
}
