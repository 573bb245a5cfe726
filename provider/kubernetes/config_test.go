package kubernetes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// pair returns a self-signed certificate and its key.
func pair(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})
}

func write(t testing.TB, dir, name string, text []byte) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// config is a kubeconfig with these fields of its cluster and its user.
func config(cluster, user string) string {
	return "apiVersion: v1\nkind: Config\ncurrent-context: one\ncontexts: [{name: one, context: {cluster: c, user: u, namespace: agents}}, {name: two, context: {cluster: c, user: u}}]\n" +
		"clusters: [{name: c, cluster: {" + cluster + "}}]\nusers: [{name: u, user: {" + user + "}}]\npreferences: {}\n"
}

func TestKubeconfig(t *testing.T) {
	cert, key := pair(t)
	dir := t.TempDir()
	write(t, dir, "ca.pem", cert)
	write(t, dir, "cert.pem", cert)
	write(t, dir, "key.pem", key)
	write(t, dir, "token", []byte("of a file\n"))
	plugin := filepath.Join(dir, "plugin")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO\" >\""+dir+"/info\"\n"+
		`echo "{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"of $1 $WHO\"}}"`+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	b64 := base64.StdEncoding.EncodeToString
	const server = "server: https://k.test:6443"
	good := server + ", certificate-authority-data: " + b64(cert)
	for name, tt := range map[string]struct {
		text  string
		opts  Options
		token string
		fails string
	}{
		"token":            {text: config(good, "token: abc"), token: "abc"},
		"CA in a file":     {text: config(server+", certificate-authority: ca.pem", "token: abc"), token: "abc"},
		"the system's CAs": {text: config(server, "token: abc"), token: "abc"},
		"token in a file":  {text: config(good, "token: abc, tokenFile: token"), token: "of a file"},
		"certificate":      {text: config(good, "client-certificate: cert.pem, client-key: key.pem")},
		"certificate data": {text: config(good, "client-certificate-data: "+b64(cert)+", client-key-data: "+b64(key))},
		"plugin": {
			text:  config(good, "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, args: [x], env: [{name: WHO, value: me}], provideClusterInfo: true}"),
			token: "of x me",
		},
		"extensions":         {text: config(good+", extensions: [], disable-compression: true", "token: abc, extensions: []"), token: "abc"},
		"another context":    {text: config(good, "token: abc"), opts: Options{Context: "two"}, token: "abc"},
		"insecure, accepted": {text: config(server+", insecure-skip-tls-verify: true", "token: abc"), opts: Options{Insecure: true}, token: "abc"},
		"plain, here":        {text: config("server: http://127.0.0.1:8080", "token: abc"), token: "abc"},

		"insecure":                {text: config(server+", insecure-skip-tls-verify: true", "token: abc"), fails: insecureEnv},
		"plain":                   {text: config("server: http://k.test", "token: abc"), fails: insecureEnv},
		"no such context":         {text: config(good, "token: abc"), opts: Options{Context: "three"}, fails: `no context "three"`},
		"no context":              {text: "clusters: []", fails: contextEnv},
		"no cluster":              {text: "current-context: one\ncontexts: [{name: one, context: {cluster: c}}]", fails: `no cluster "c"`},
		"no user":                 {text: strings.Replace(config(good, "token: abc"), "name: u,", "name: v,", 1), fails: `no user "u"`},
		"no address":              {text: config("server: k.test", "token: abc"), fails: "not an http or https address"},
		"a secret in the address": {text: config("server: https://me:secret@k.test", ""), fails: "not an http or https address"},
		"a proxy":                 {text: config(good+", proxy-url: http://p", "token: abc"), fails: `"proxy-url"`},
		"somebody else":           {text: config(good, "token: abc, as: admin"), fails: `"as"`},
		"an old plugin":           {text: config(good, "auth-provider: {name: gcp}"), fails: `"auth-provider"`},
		"password":                {text: config(good, "username: me, password: secret"), fails: "does not support"},
		"plugin that asks":        {text: config(good, "exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Always}"), fails: "credential plugin"},
		"future plugin":           {text: config(good, "exec: {apiVersion: client.authentication.k8s.io/v2, command: x}"), fails: "credential plugin"},
		"no certificate":          {text: config(server+", certificate-authority-data: "+b64([]byte("secret")), ""), fails: "has no certificate"},
		"not base64":              {text: config(server+", certificate-authority-data: secret!", ""), fails: "not base64"},
		"no key":                  {text: config(good, "client-certificate: cert.pem"), fails: "no valid pair"},
		"no file":                 {text: config(good, "client-certificate: none.pem, client-key: key.pem"), fails: "cannot be read"},
		"not YAML":                {text: "{secret", fails: "not a valid kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			o := tt.opts
			o.Kubeconfig = write(t, dir, "config", []byte(tt.text))
			c, err := o.find()
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error()+hintOf(err), tt.fails) || strings.Contains(err.Error(), "secret") {
					t.Errorf("the error is %v, want one with %q and without secrets", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]string{true: "default", false: "agents"}[o.Context == "two"]; c.namespace != want {
				t.Errorf("the namespace is %q, want %q", c.namespace, want)
			}
			if err := c.token.Fresh(t.Context(), false); err != nil || c.token.Current() != tt.token {
				t.Errorf("the token is %q, %v; want %q", c.token.Current(), err, tt.token)
			}
			if wants := strings.Contains(name, "certificate"); wants != (c.tls.GetClientCertificate != nil) {
				t.Errorf("a client certificate: %v, want %v", !wants, wants)
			}
		})
	}
	info, err := os.ReadFile(filepath.Join(dir, "info"))
	if err != nil || !strings.Contains(string(info), b64(cert)) || !strings.Contains(string(info), "https://k.test:6443") {
		t.Errorf("the plugin was told %s, %v", info, err)
	}
}

// The first of several files that has an entry decides, as with kubectl.
func TestSeveralKubeconfigs(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write(t, other, "token", []byte("beside its file"))
	one := write(t, dir, "one", []byte("current-context: one\nusers: [{name: u, user: {token: first}}]"))
	two := write(t, other, "two", []byte(config("server: https://k.test", "tokenFile: token")))
	for list, want := range map[string]string{one + ":" + two: "first", two + ":" + one: "beside its file", ":/none:" + two: "beside its file"} {
		c, err := (&Options{Kubeconfig: list}).find()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.token.Fresh(t.Context(), false); err != nil || c.token.Current() != want {
			t.Errorf("%s: the token is %q, %v; want %q", list, c.token.Current(), err, want)
		}
	}
	t.Setenv("HOME", t.TempDir())
	p, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	_, err = p.Create(t.Context(), &sandbox.Spec{ID: "sb-none"})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "no cluster is set") {
		t.Errorf("without a cluster: %v", err)
	}
	if _, err := (&Options{Kubeconfig: "/none"}).find(); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a missing file: %v", err)
	}
}

// A pod uses its service account, and reads its token again when that has
// expired.
func TestInCluster(t *testing.T) {
	cert, _ := pair(t)
	dir := t.TempDir()
	write(t, dir, "ca.crt", cert)
	write(t, dir, "token", []byte("first"))
	write(t, dir, "namespace", []byte("agents"))
	c, err := (&Options{Host: "fd00::1", Port: "443", Account: dir}).find()
	if err != nil || c.server.String() != "https://[fd00::1]:443" || c.namespace != "agents" || c.tls.RootCAs == nil {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := c.token.Fresh(t.Context(), false); err != nil || c.token.Current() != "first" {
		t.Errorf("the token is %q, %v", c.token.Current(), err)
	}
	write(t, dir, "token", []byte("second"))
	if err := c.token.Fresh(t.Context(), true); err != nil || c.token.Current() != "second" {
		t.Errorf("the renewed token is %q, %v", c.token.Current(), err)
	}
	if c, err = (&Options{Host: "10.0.0.1", Account: dir, Namespace: "other"}).find(); err != nil || c.namespace != "other" || c.server.Port() != "443" {
		t.Errorf("%+v, %v", c, err)
	}
}

// No file of any form stops the program, and none that is accepted has an address
// without a host.
func FuzzKubeconfig(f *testing.F) {
	cert, key := pair(f)
	b64 := base64.StdEncoding.EncodeToString
	for _, user := range []string{"token: a", "exec: {apiVersion: client.authentication.k8s.io/v1, command: x}", "client-certificate-data: " + b64(cert) + ", client-key-data: " + b64(key), "as: b"} {
		f.Add([]byte(config("server: https://k.test, certificate-authority-data: "+b64(cert), user)))
	}
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var k kubeconfig
		if k.parse("/none/config", text) != nil {
			return
		}
		if c, err := k.choose("", false); err == nil && (c.server.Host == "" || c.tls.InsecureSkipVerify) {
			t.Errorf("accepted: %+v", c)
		}
	})
}
