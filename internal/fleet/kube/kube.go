// Package kube finds nodes in Kubernetes: the pods of a service, of which there
// is one on each machine.
package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/fleet"
	"github.com/atoll-run/atoll/sandbox"
)

// account is where Kubernetes puts the credentials of a pod.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	patience  = 10 * time.Second
	maxAnswer = 64 << 20
)

// Pods are the pods of a service. It is safe for concurrent use.
type Pods struct {
	namespace, service string
	api                string // the address of the API server
	token              string // a file, which Kubernetes replaces now and then
	client             *http.Client
}

func refuse(subject, message, hint string, cause error) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "fleet.open", Subject: subject, Message: message, Hint: hint, Cause: cause}
}

// Open returns the pods of a service, [NAMESPACE/]NAME, with the credentials of
// the pod that it runs in.
func Open(service string) (*Pods, error) {
	return open(service, account, os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
}

func open(service, account, host, port string) (*Pods, error) {
	const inside = "run the daemon in a pod with a service account"
	if host == "" || port == "" {
		return nil, refuse("--node-service", "this is not a pod of Kubernetes", "outside, list the nodes with --node or --nodes-file", nil)
	}
	p := &Pods{api: "https://" + net.JoinHostPort(host, port), token: filepath.Join(account, "token")}
	var named bool
	if p.namespace, p.service, named = strings.Cut(service, "/"); !named {
		text, err := os.ReadFile(filepath.Join(account, "namespace"))
		if err != nil {
			return nil, refuse("--node-service", "the namespace of the pod cannot be read", inside, err)
		}
		p.namespace, p.service = strings.TrimSpace(string(text)), service
	}
	for _, part := range []string{p.namespace, p.service} {
		if strings.Trim(part, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || part == "" {
			return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "fleet.open", Subject: fmt.Sprintf("%.80q", service), Message: "is not the name of a service", Hint: "write [NAMESPACE/]NAME"}
		}
	}
	pem, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return nil, refuse("--node-service", "the certificate of the API server cannot be read", inside, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, refuse(filepath.Join(account, "ca.crt"), "holds no PEM certificate", inside, nil)
	}
	p.client = &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	return p, nil
}

// slice is what is used of an EndpointSlice.
type slice struct {
	AddressType string
	Endpoints   []struct {
		Addresses  []string
		NodeName   string
		Conditions struct{ Ready, Terminating *bool }
	}
	Ports []struct{ Port *int }
}

// Nodes lists the pods, ready or not, each named by its machine. The host of a
// URL is MACHINE.SERVICE.NAMESPACE.svc, whatever address the pod has now.
func (p *Pods) Nodes(ctx context.Context) ([]fleet.Found, error) {
	all, err := p.slices(ctx)
	if err != nil {
		return nil, err
	}
	best := map[string]int{}
	found := map[string]fleet.Found{}
	for _, s := range all {
		if len(s.Ports) == 0 || s.Ports[0].Port == nil || s.AddressType == "FQDN" {
			continue
		}
		port := strconv.Itoa(*s.Ports[0].Port)
		for _, e := range s.Endpoints {
			if e.NodeName == "" || len(e.Addresses) == 0 {
				continue
			}
			// While a pod is replaced there are two. The one that stays is the node.
			rank := 1
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				rank = 2
			}
			if e.Conditions.Terminating != nil && *e.Conditions.Terminating {
				rank -= 2
			}
			name := strings.ReplaceAll(e.NodeName, ".", "-")
			if former, known := best[name]; known && former >= rank {
				continue
			}
			best[name] = rank
			found[name] = fleet.Found{
				Name: name, Dial: net.JoinHostPort(e.Addresses[0], port),
				URL: "https://" + net.JoinHostPort(fmt.Sprintf("%s.%s.%s.svc", name, p.service, p.namespace), port),
			}
		}
	}
	nodes := make([]fleet.Found, 0, len(found))
	for _, one := range found {
		nodes = append(nodes, one)
	}
	slices.SortFunc(nodes, func(a, b fleet.Found) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}

func (p *Pods) slices(ctx context.Context) ([]slice, error) {
	subject := p.namespace + "/" + p.service
	token, err := os.ReadFile(p.token)
	if err != nil {
		return nil, refuse(p.token, "the file cannot be read", "", err)
	}
	query := url.Values{"labelSelector": {"kubernetes.io/service-name=" + p.service}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.api+"/apis/discovery.k8s.io/v1/namespaces/"+p.namespace+"/endpointslices?"+query.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r.Header.Set("Accept", "application/json")
	resp, err := p.client.Do(r)
	if err != nil {
		return nil, refuse(subject, "the API server does not answer at "+p.api, "see whether pods of the node reach the service kubernetes.default", err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, refuse(subject, "the API server refuses to list its endpoint slices", "give the service account the right to list endpointslices of discovery.k8s.io in that namespace", nil)
	default:
		return nil, refuse(subject, "the API server answered "+resp.Status, "", nil)
	}
	var list struct{ Items []slice }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&list); err != nil {
		return nil, refuse(subject, "the answer of the API server cannot be read", "", err)
	}
	return list.Items, nil
}
