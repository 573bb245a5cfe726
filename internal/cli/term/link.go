package term

import (
	"context"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// OpenLink prints a link that works once, and opens it in the browser unless
// stay is set or there is none.
func (t *Term) OpenLink(ctx context.Context, link string, stay bool) error {
	if err := t.Println(link); err != nil {
		return err
	}
	if stay || !t.hasScreen() || !browse(ctx, link) {
		t.Notef("atoll: open the link in a browser; it works once\n")
	}
	return nil
}

// hasScreen reports whether a browser can be shown here.
func (t *Term) hasScreen() bool {
	for _, name := range []string{"DISPLAY", "WAYLAND_DISPLAY"} {
		if v, _ := t.LookupEnv(name); v != "" {
			return true
		}
	}
	return runtime.GOOS != "linux"
}

// browse opens a link in the user's browser, and reports whether one took it.
// Other users can read the arguments of programs, so the browser gets a file of
// this user that leads to the link.
func browse(ctx context.Context, link string) bool {
	dir, err := os.UserCacheDir()
	if err != nil || os.MkdirAll(filepath.Join(dir, "atoll"), 0o700) != nil {
		return false
	}
	page := filepath.Join(dir, "atoll", "console.html")
	text := "<!doctype html><meta charset=utf-8><title>Atoll</title><meta http-equiv=refresh content=\"0;url=" + html.EscapeString(link) + "\">\n"
	_ = os.Remove(page) // one of another mode
	if os.WriteFile(page, []byte(text), 0o600) != nil {
		return false
	}
	command := []string{"xdg-open", page}
	switch runtime.GOOS {
	case "darwin":
		command[0] = "open"
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", page}
	}
	return exec.CommandContext(ctx, command[0], command[1:]...).Run() == nil //nolint:gosec // a fixed program, and a file of ours
}
