package portproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// browse makes a request as a browser does, and returns its status, its body and
// its cookie.
func browse(t *testing.T, addr, method, path, body string, header map[string]string) (status int, text, cookie string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "8000-one.localhost"
	for k, v := range header {
		r.Header.Set(k, v)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	all, _ := io.ReadAll(resp.Body)
	for _, c := range resp.Cookies() {
		if c.Name == "atoll_port" {
			cookie = c.Name + "=" + c.Value
			if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" {
				t.Errorf("the cookie is not confined: %+v", c)
			}
		}
	}
	return resp.StatusCode, string(all), cookie
}

// A browser exchanges the token in the fragment of a link for a cookie, once. The
// program inside never sees it, and no other page can use it.
func TestAttackOpenInABrowser(t *testing.T) {
	b, url := start(t)
	b.serve(t, "one", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "inside, with: ", r.Header["Cookie"]) })
	addr := strings.TrimPrefix(url, "http://")
	same := map[string]string{"Sec-Fetch-Site": "same-origin"}

	status, page, _ := browse(t, addr, "GET", "/.atoll/open", "", nil)
	if status != 200 || !strings.Contains(page, "location.hash") {
		t.Fatalf("the page: %d %s", status, page)
	}
	for name, header := range map[string]map[string]string{
		"another site": {"Sec-Fetch-Site": "cross-site"}, "another sandbox": {"Sec-Fetch-Site": "same-site"},
		"an old browser": {"Origin": "http://8000-two.localhost"}, "no browser": {},
	} {
		if status, _, cookie := browse(t, addr, "POST", "/.atoll/open", "token-one", header); status != 403 || cookie != "" {
			t.Errorf("%s opened the port: %d %q", name, status, cookie)
		}
	}
	if status, _, cookie := browse(t, addr, "POST", "/.atoll/open", "token-two", same); status != 401 || cookie != "" {
		t.Errorf("the token of another sandbox: %d %q", status, cookie)
	}
	status, _, cookie := browse(t, addr, "POST", "/.atoll/open", "token-one", same)
	if status != 204 || cookie == "" {
		t.Fatalf("the exchange: %d %q", status, cookie)
	}
	if status, _, again := browse(t, addr, "POST", "/.atoll/open", "token-one", same); status != 401 || again != "" {
		t.Errorf("the link works twice: %d", status)
	}

	with := func(site string) map[string]string {
		return map[string]string{"Cookie": "mine=1; " + cookie + "; other=2", "Sec-Fetch-Site": site}
	}
	if status, text, _ := browse(t, addr, "GET", "/", "", with("same-origin")); status != 200 || text != "inside, with: [mine=1; other=2]" {
		t.Errorf("with the cookie: %d %s", status, text)
	}
	for _, site := range []string{"same-site", "cross-site", ""} {
		if status, _, _ := browse(t, addr, "GET", "/", "", with(site)); status != 401 {
			t.Errorf("a page elsewhere (%q) used the cookie: %d", site, status)
		}
	}
}
