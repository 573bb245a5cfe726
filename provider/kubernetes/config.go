package kubernetes

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// cluster is how to reach an API server.
type cluster struct {
	server    *url.URL // without a host: there is no server
	tls       *tls.Config
	token     *credential.Source
	namespace string
}

// kubeconfig is the used part of configuration files.
type kubeconfig struct {
	Current  string         `yaml:"current-context"`
	Clusters []clusterEntry `yaml:"clusters"`
	Users    []userEntry    `yaml:"users"`
	Contexts []contextEntry `yaml:"contexts"`
}

type contextEntry struct {
	Name    string `yaml:"name"`
	Context struct {
		Cluster   string `yaml:"cluster"`
		User      string `yaml:"user"`
		Namespace string `yaml:"namespace"`
	} `yaml:"context"`
}

type clusterEntry struct {
	Name    string `yaml:"name"`
	Cluster struct {
		Server     string         `yaml:"server"`
		CA         string         `yaml:"certificate-authority"`
		CAData     string         `yaml:"certificate-authority-data"`
		Insecure   bool           `yaml:"insecure-skip-tls-verify"`
		ServerName string         `yaml:"tls-server-name"`
		Other      map[string]any `yaml:",inline"`
	} `yaml:"cluster"`
	dir string // of the file
}

type userEntry struct {
	Name string `yaml:"name"`
	User struct {
		Token     string         `yaml:"token"`
		TokenFile string         `yaml:"tokenFile"`
		Cert      string         `yaml:"client-certificate"`
		CertData  string         `yaml:"client-certificate-data"`
		Key       string         `yaml:"client-key"`
		KeyData   string         `yaml:"client-key-data"`
		Exec      *plugin        `yaml:"exec"`
		Other     map[string]any `yaml:",inline"`
	} `yaml:"user"`
	dir string
}

// plugin is a program that prints a token.
type plugin struct {
	API     string   `yaml:"apiVersion"`
	Command string   `yaml:"command"`
	Args    []string `yaml:"args"`
	Env     []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	Mode string `yaml:"interactiveMode"`
	Info bool   `yaml:"provideClusterInfo"`
}

// maxConfig limits the bytes of a configuration file.
const maxConfig = 4 << 20

func invalid(subject, message string, cause error) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "kubernetes.open", Subject: subject, Message: message, Cause: cause}
}

// absent returns the error for something that is set and not there.
func absent(subject, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "kubernetes.open", Subject: subject, Message: message, Hint: hint}
}

// parse adds a configuration file to those that were read before it, whose
// entries are used where both have one with the same name.
func (k *kubeconfig) parse(file string, text []byte) error {
	var one kubeconfig
	if err := yaml.Unmarshal(text, &one); err != nil {
		// The error could show a part of the file, which may have a token.
		return invalid(file, "is not a valid kubeconfig", nil)
	}
	dir := filepath.Dir(file)
	for i := range one.Clusters {
		one.Clusters[i].dir = dir
	}
	for i := range one.Users {
		one.Users[i].dir = dir
	}
	k.Current = cmp.Or(k.Current, one.Current)
	k.Clusters, k.Users, k.Contexts = append(k.Clusters, one.Clusters...), append(k.Users, one.Users...), append(k.Contexts, one.Contexts...)
	return nil
}

// load reads configuration files. Missing ones are left out, as kubectl does.
func load(files []string) (k kubeconfig, found bool, err error) {
	for _, file := range files {
		if file == "" {
			continue
		}
		text, err := read(file, maxConfig)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = k.parse(file, text)
		}
		if err != nil {
			return k, false, err
		}
		found = true
	}
	return k, found, nil
}

func read(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, invalid(file, "cannot be read", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, invalid(file, "cannot be read", err)
	}
	return text, nil
}

// choose returns the cluster of a context. Empty: the current one.
func (k *kubeconfig) choose(context string, insecure bool) (c cluster, err error) {
	name := cmp.Or(context, k.Current)
	if name == "" {
		return c, invalid("kubeconfig", "has no current context; set "+contextEnv, nil)
	}
	i := slices.IndexFunc(k.Contexts, func(e contextEntry) bool { return e.Name == name })
	if i < 0 {
		return c, absent("kubeconfig", fmt.Sprintf("has no context %q", name), "list them with kubectl config get-contexts, and set "+contextEnv)
	}
	of := k.Contexts[i].Context
	i = slices.IndexFunc(k.Clusters, func(e clusterEntry) bool { return e.Name == of.Cluster })
	if i < 0 {
		return c, invalid("kubeconfig", fmt.Sprintf("has no cluster %q, which its context %q names", of.Cluster, name), nil)
	}
	c.namespace = of.Namespace
	entry := &k.Clusters[i]
	if err := entry.open(&c, insecure); err != nil {
		return c, err
	}
	if of.User == "" {
		return c, nil
	}
	i = slices.IndexFunc(k.Users, func(e userEntry) bool { return e.Name == of.User })
	if i < 0 {
		return c, invalid("kubeconfig", fmt.Sprintf("has no user %q, which its context %q names", of.User, name), nil)
	}
	return c, k.Users[i].open(&c, entry)
}

// unknown refuses fields that would change the server or the user of a request.
func unknown(where string, other map[string]any, harmless ...string) error {
	for field := range other {
		if !slices.Contains(harmless, field) {
			return invalid("kubeconfig", fmt.Sprintf("%s has the field %q, which Atoll does not support", where, field), nil)
		}
	}
	return nil
}

// open sets the address of a cluster, and how its certificate is verified.
func (e *clusterEntry) open(c *cluster, insecure bool) (err error) {
	where := fmt.Sprintf("the cluster %q", e.Name)
	if err := unknown(where, e.Cluster.Other, "extensions", "disable-compression"); err != nil {
		return err
	}
	if c.server, err = rest.ParseURL("kubernetes.open", "kubeconfig: the server of "+where, e.Cluster.Server); err != nil {
		return err
	}
	plain := c.server.Scheme == "http" && !rest.Loopback(c.server.Hostname())
	if (e.Cluster.Insecure || plain) && !insecure {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "kubernetes.open", Subject: "kubeconfig", Message: where + " is used without verifying who answers, so credentials could be stolen",
			Hint: "give its certificate-authority-data, or accept that with " + insecureEnv + "=1",
		}
	}
	c.tls = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: e.Cluster.ServerName, InsecureSkipVerify: e.Cluster.Insecure} //nolint:gosec // only if the user accepts it
	ca, err := data(e.dir, e.Cluster.CAData, e.Cluster.CA)
	if err == nil && ca != nil {
		c.tls.RootCAs, err = pool(ca)
	}
	return err
}

func pool(ca []byte) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, invalid("kubeconfig", "the certificate authority has no certificate", nil)
	}
	return roots, nil
}

// data returns the decoded text, or the content of the file. Nil: neither is set.
func data(dir, text, file string) ([]byte, error) {
	switch {
	case text != "":
		out, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, invalid("kubeconfig", "has data that is not base64", nil)
		}
		return out, nil
	case file != "":
		return read(within(dir, file), maxConfig)
	}
	return nil, nil
}

func within(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

// open sets the credential of a user.
func (e *userEntry) open(c *cluster, at *clusterEntry) error {
	u, where := &e.User, fmt.Sprintf("the user %q", e.Name)
	if err := unknown(where, u.Other, "extensions"); err != nil {
		return err
	}
	switch {
	case u.TokenFile != "": // as kubectl, before the token
		c.token = credential.New(configEnv, "", within(e.dir, u.TokenFile), "")
	case u.Token != "":
		c.token = credential.New(configEnv, u.Token, "", "")
	case u.Exec != nil:
		if err := e.exec(c, at); err != nil {
			return err
		}
	}
	if u.Cert == "" && u.CertData == "" {
		return nil
	}
	pair := func() (*tls.Certificate, error) {
		cert, err1 := data(e.dir, u.CertData, u.Cert)
		key, err2 := data(e.dir, u.KeyData, u.Key)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		both, err := tls.X509KeyPair(cert, key)
		if err != nil { // the cause could show a part of the key
			return nil, invalid("kubeconfig", where+" has no valid pair of certificate and key", nil)
		}
		return &both, nil
	}
	if _, err := pair(); err != nil {
		return err
	}
	// Files are read again for each connection, because certificates are renewed.
	c.tls.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair() }
	return nil
}

// exec makes a plugin the source of the token. It runs when the server rejects
// the present token.
func (e *userEntry) exec(c *cluster, at *clusterEntry) error {
	x := e.User.Exec
	if x.Command == "" || x.Mode == "Always" || x.API != "client.authentication.k8s.io/v1" && x.API != "client.authentication.k8s.io/v1beta1" {
		return invalid("kubeconfig", fmt.Sprintf("the user %q has a credential plugin that asks the user, or is not of version v1 or v1beta1", e.Name), nil)
	}
	spec := map[string]any{"interactive": false}
	if x.Info {
		info := map[string]any{"server": at.Cluster.Server}
		if ca, err := data(at.dir, at.Cluster.CAData, at.Cluster.CA); err != nil {
			return err
		} else if ca != nil {
			info["certificate-authority-data"] = ca // as base64
		}
		if at.Cluster.ServerName != "" {
			info["tls-server-name"] = at.Cluster.ServerName
		}
		spec["cluster"] = info
	}
	info, err := json.Marshal(map[string]any{"apiVersion": x.API, "kind": "ExecCredential", "spec": spec})
	if err != nil {
		return err
	}
	env := []string{"KUBERNETES_EXEC_INFO=" + string(info)}
	for _, v := range x.Env {
		env = append(env, v.Name+"="+v.Value)
	}
	command := x.Command
	if strings.ContainsRune(command, '/') {
		command = within(e.dir, command)
	}
	c.token = credential.Program(configEnv, append([]string{command}, x.Args...), env, pluginToken)
	return nil
}

// pluginToken returns the token that a plugin printed.
func pluginToken(output []byte) (string, error) {
	var said struct {
		Kind   string
		Status struct{ Token string }
	}
	if json.Unmarshal(output, &said) != nil || said.Kind != "ExecCredential" || said.Status.Token == "" {
		return "", errors.New("it is not an ExecCredential with a token") // the output may have secrets
	}
	return said.Status.Token, nil
}

// account is where a pod finds its own credential.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// inCluster returns the cluster that a pod runs in. The token is read again when it
// has expired.
func inCluster(dir, host, port string) (c cluster, err error) {
	ca, err := read(filepath.Join(dir, "ca.crt"), maxConfig)
	if err != nil {
		return c, err
	}
	c.tls = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.tls.RootCAs, err = pool(ca); err != nil {
		return c, err
	}
	namespace, err := read(filepath.Join(dir, "namespace"), maxConfig)
	if err != nil {
		return c, err
	}
	c.namespace = strings.TrimSpace(string(namespace))
	c.token = credential.New("token of the service account", "", filepath.Join(dir, "token"), "")
	c.server, err = rest.ParseURL("kubernetes.open", "KUBERNETES_SERVICE_HOST", "https://"+net.JoinHostPort(host, cmp.Or(port, "443")))
	return c, err
}

// find returns the cluster that the options name: that of the kubeconfig, that of
// the pod in which Atoll runs, or that of the user's own kubeconfig.
func (o *Options) find() (c cluster, err error) {
	c = cluster{server: &url.URL{}}
	files, explicit := filepath.SplitList(o.Kubeconfig), o.Kubeconfig != ""
	if !explicit {
		if o.Host != "" {
			c, err = inCluster(cmp.Or(o.Account, account), o.Host, o.Port)
			return c.complete(o), err
		}
		if home, err := os.UserHomeDir(); err == nil {
			files = []string{filepath.Join(home, ".kube", "config")}
		}
	}
	k, found, err := load(files)
	switch {
	case err != nil:
		return c, err
	case found:
		c, err = k.choose(o.Context, o.Insecure)
	case explicit:
		err = absent(o.Kubeconfig, "does not exist", "set "+configEnv+" to a configuration file of kubectl")
	}
	return c.complete(o), err
}

func (c cluster) complete(o *Options) cluster {
	c.namespace = cmp.Or(o.Namespace, c.namespace, "default")
	if c.token == nil {
		c.token = credential.New(configEnv, "", "", "")
	}
	return c
}
