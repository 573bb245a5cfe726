package record

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

const (
	timescale = 90000 // units of time in a second of video
	beginTime = 20 * time.Second
	stopTime  = 8 * time.Second
	// settleTime bounds the wait for a fragment, which takes a second.
	settleTime = 2 * time.Second
	// askTime bounds the question how ffmpeg ended.
	askTime      = time.Second
	maxComplaint = 1 << 10
)

// captureScript records the display: $1 pictures per second, of $2 x $3 pixels.
// The size stays if that of the display changes, so all parts fit together. Each
// fragment takes a second, each picture that needs no other is four seconds
// after the last.
const captureScript = `exec ffmpeg -nostdin -hide_banner -loglevel error -f x11grab -framerate "$1" -i "${DISPLAY:-:0}" -an \
	-vf "scale=$2:$3:force_original_aspect_ratio=decrease,pad=$2:$3:(ow-iw)/2:(oh-ih)/2,setsar=1" \
	-c:v libx264 -preset ultrafast -tune zerolatency -crf 28 -pix_fmt yuv420p -g $(($1 * 4)) -fps_mode vfr -video_track_timescale 90000 \
	-f mp4 -movflags +empty_moov+default_base_moof -frag_duration 1000000 -flush_packets 1 pipe:1`

// film records a desktop. ffmpeg runs in the sandbox and writes the video to its
// standard output, so nothing is written inside, and what has arrived stays when
// the sandbox ends.
type film struct {
	*recorder
	width, height int
	first         *capture
	header        []byte // of all parts

	// The recorder's mu guards the rest.
	fragments uint32
	last      uint64 // the time of the last fragment
}

// capture is a run of ffmpeg.
type capture struct {
	p         driver.Process
	out       *bufio.Reader
	complaint bytes.Buffer
	told      chan struct{} // closed when complaint is complete
	cancel    func()
}

// launch starts ffmpeg.
func (f *film) launch() (*capture, error) {
	// It is asked to end, and ends the video, after the recorder's context has.
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.ctx))
	sb, err := f.s.cfg.Open(ctx, string(f.row.Sandbox))
	if err != nil {
		cancel()
		return nil, err
	}
	even := func(n int) string { return fmt.Sprint((n + 1) &^ 1) }
	p, err := sb.Exec(ctx, sandbox.Command{Args: []string{"/bin/sh", "-c", captureScript, "record", fmt.Sprint(f.row.FPS), even(f.width), even(f.height)}})
	if err != nil {
		cancel()
		return nil, err
	}
	c := &capture{p: p, out: bufio.NewReaderSize(p.Stdout(), 64<<10), told: make(chan struct{}), cancel: cancel}
	go func() {
		defer close(c.told)
		_, _ = io.CopyN(&c.complaint, p.Stderr(), maxComplaint)
		_, _ = io.Copy(io.Discard, p.Stderr())
	}()
	return c, nil
}

// close ends ffmpeg, whatever it does.
func (c *capture) close() {
	_ = c.p.Close()
	c.cancel()
}

// until closes the capture when ctx has ended and ffmpeg has ended the video.
// The caller calls the result when it has read everything.
func (c *capture) until(ctx context.Context) (over func()) {
	read := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		patience := stopTime
		if errors.Is(context.Cause(ctx), errClosing) {
			patience = stopTime / 4
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = c.p.Signal(ending, int(unix.SIGINT))
		select {
		case <-read:
		case <-ending.Done():
		}
		_ = c.p.Close()
	})
	return func() {
		close(read)
		stop()
	}
}

// failure returns why ffmpeg ended. The recording was not asked to end.
func (c *capture) failure(ctx context.Context) error {
	exit, err := c.p.Wait(ctx)
	if err != nil {
		return err
	}
	select {
	case <-c.told:
	case <-ctx.Done():
		return ctx.Err()
	}
	text := printable(strings.Join(strings.Fields(c.complaint.String()), " "))
	switch {
	case exit.Code == 127:
		return &sandbox.Error{
			Code: sandbox.CodeUnsupported, Subject: "ffmpeg", Message: "the image has no ffmpeg, which records desktops",
			Hint: "use an image with Xvfb and ffmpeg; build one with: make desktop-image",
		}
	case strings.Contains(strings.ToLower(text), "open display"):
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "display", Message: "the display cannot be recorded: " + text, Hint: "start it with: atoll computer start SANDBOX"}
	}
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "ffmpeg", Message: fmt.Sprintf("ended with exit code %d: %s", exit.Code, text)}
}

// begin starts the first run, and waits until it has begun.
func (f *film) begin(ctx context.Context) (*capture, error) {
	ctx, cancel := context.WithTimeout(ctx, beginTime)
	defer cancel()
	c, err := f.launch()
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, c.close)()
	if f.header, err = readHeader(c.out); err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		err = &sandbox.Error{Code: sandbox.CodeTimeout, Subject: "ffmpeg", Message: "recorded nothing in time"}
	} else if errors.Is(err, errNoVideo) {
		err = &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: "ffmpeg", Message: "wrote what is no video", Cause: err}
	} else {
		err = c.failure(ctx)
	}
	c.close()
	return nil, err
}

// record records over several runs of ffmpeg: one ends with the display, and when
// the sandbox is put to disk.
func (f *film) record(ctx context.Context) sandbox.Reason {
	c := f.first
	for tries := 0; ; {
		before := f.fragments
		why, err := f.follow(ctx, c)
		c.close()
		if why != "" {
			return why
		}
		if f.fragments > before {
			tries = 0
		}
		for {
			if why := f.await(ctx); why != "" {
				return why
			}
			if tries++; tries > enterTries {
				return f.gaveUp(ctx, err)
			}
			if c, err = f.launch(); err == nil {
				break
			}
			if sandbox.CodeOf(err) == sandbox.CodeNotFound {
				return f.gone(ctx)
			}
		}
	}
}

// gaveUp returns why ffmpeg cannot go on in a sandbox that runs.
func (f *film) gaveUp(ctx context.Context, err error) sandbox.Reason {
	f.s.note(err)
	var why *sandbox.Error
	switch {
	case !errors.As(err, &why):
		return f.gone(ctx)
	case why.Subject == "display":
		return viewing.ReasonNoDisplay
	case why.Subject == "ffmpeg":
		return viewing.ReasonFFmpeg
	}
	return f.gone(ctx)
}

// follow records one run. It returns why the recording ends, or else why the run
// did.
func (f *film) follow(ctx context.Context, c *capture) (why sandbox.Reason, err error) {
	over := c.until(ctx)
	defer over()
	began := uint64(time.Since(f.row.Started).Seconds() * timescale)
	if f.fragments == 0 {
		began = 0
	} else if began <= f.last { // the clocks inside and outside differ
		began = f.last + timescale
	}
	if c != f.first { // whose header was read
		header, failed := readHeader(c.out)
		if err = failed; err == nil && !bytes.Equal(header, f.header) {
			err = errNoVideo
		}
	}
	for {
		var moof, mdat []byte
		if err == nil {
			moof, mdat, err = readFragment(c.out)
		}
		if err == nil {
			err = f.write(moof, mdat, began, &why)
		}
		switch {
		case why != "":
			return why, nil
		case errors.Is(err, errNoVideo):
			f.s.note(err)
			return viewing.ReasonFFmpeg, nil
		case err != nil && ctx.Err() != nil:
			return ended(ctx), nil
		case err != nil:
			wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
			defer cancel()
			return "", c.failure(wait)
		}
	}
}

// write appends a fragment to the file, the first one with the header.
func (f *film) write(moof, mdat []byte, began uint64, why *sandbox.Reason) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := place(moof, f.fragments+1, began)
	if err != nil {
		return err
	}
	var data []byte
	if f.fragments == 0 {
		data = bytes.Clone(f.header)
	}
	if *why = f.append(append(append(data, moof...), mdat...)); *why == "" {
		f.fragments, f.last = f.fragments+1, at
	}
	return nil
}

// settle waits for the fragment that is being recorded. When the recording ends,
// ffmpeg completes it at once.
func (f *film) settle(ctx context.Context, last bool) {
	if last {
		return
	}
	count := func() uint32 {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.fragments
	}
	late := time.After(settleTime)
	for began := count(); count() == began; {
		select {
		case <-time.After(settleTime / 200):
		case <-late:
			return
		case <-f.done:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (f *film) rest() []byte { return nil }
