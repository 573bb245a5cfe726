package catalog

// Builtin returns the providers that Atoll has drivers for, the default first,
// with their names, summaries and warnings. Package provider/all opens them.
func Builtin() []Provider {
	list := []Provider{
		{Name: "gvisor", Summary: "a kernel of its own for every sandbox, from this program alone"},
		{
			Name: "host", Summary: "plain processes of this machine, without isolation",
			Warning: "provider host does not isolate: commands run with your rights on this machine",
		},
		{Name: "microvm", Summary: "virtual machines of QEMU and KVM, with a kernel of the distribution"},
		{Name: "docker", Summary: "containers of a Docker daemon, named by DOCKER_HOST and the like"},
	}
	for _, name := range []string{"e2b", "superserve", "boxlite", "islo", "cloudflare", "daytona", "vercel", "runloop", "opensandbox", "blaxel", "modal", "microsandbox", "kubernetes"} {
		d, _ := Find(name)
		list = append(list, Provider{Name: name, Summary: d.Summary + ", named by " + d.Credentials[0].Env + " and the like"})
	}
	return append(list,
		Provider{Name: "remote", Summary: "another Atoll daemon, named by ATOLL_REMOTE_HOST and ATOLL_REMOTE_KEY"},
		Provider{Name: "none", Summary: "no sandboxes at all, for deployments that need none"})
}
