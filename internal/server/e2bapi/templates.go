package e2bapi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// templateAPI serves templates: built ones, and snapshots.
type templateAPI struct {
	templates Templates
	hasImage  func(ctx context.Context, ref string) (bool, error)
	defaults  func(ctx context.Context, digest string) (user, dir string, err error)
	snapshots *snapshotAPI
}

// The default tag is "default" for E2B clients and "latest" elsewhere.
const latestTag = "latest"

func ownTag(tag string) string {
	if tag == defaultTag || tag == "" {
		return latestTag
	}
	return tag
}

func toTag(tag string) string {
	if tag == latestTag {
		return defaultTag
	}
	return tag
}

// splitRef returns the name and the tag that a client means. The names of other
// tenants' templates begin with TENANT/.
func splitRef(ctx context.Context, ref string) (name, tag string) {
	name, tag, _ = strings.Cut(strings.ToLower(strings.TrimSpace(ref)), ":")
	return template.ShortRef(tenantOf(ctx), name), ownTag(tag)
}

// buildID returns the id of a build for clients: the one that they were given,
// or a computed one if another API built it.
func buildID(t *durable.Template) string {
	if t.Build != "" {
		return t.Build
	}
	sum := sha256.Sum256([]byte("atoll build " + t.Name + "\x00" + t.Image))
	return uuid([16]byte(sum[:16]))
}

// uuid formats bytes as a UUID of version 8, the version for custom values.
func uuid(b [16]byte) string {
	b[6], b[8] = b[6]&0x0f|0x80, b[8]&0x3f|0x80
	h := hex.EncodeToString(b[:])
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// tags returns the tags of a template, the newest first. None is nil.
func (h *templateAPI) tags(ctx context.Context, name string) ([]durable.Template, error) {
	all, err := h.templates.Templates(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(t durable.Template) bool { return t.Name != name })
	slices.SortFunc(all, func(a, b durable.Template) int { return b.Created.Compare(a.Created) })
	return all, nil
}

// find returns the template that a client names, and its image. If there is no
// such template, the image is empty.
func (h *templateAPI) find(ctx context.Context, ref string) (t durable.Template, image string, err error) {
	name, tag := splitRef(ctx, ref)
	t, err = h.templates.Template(ctx, name+":"+tag)
	switch sandbox.CodeOf(err) {
	case "":
		return t, template.Prefix + t.Name + ":" + t.Tag, nil
	case sandbox.CodeNotFound, sandbox.CodeInvalid: // a name that templates cannot have
		return t, "", nil
	}
	return t, "", err
}

// setDefaults records the user and the directory of a template, which are the
// defaults for commands in its sandboxes.
func (h *templateAPI) setDefaults(ctx context.Context, spec *sandbox.Spec, t *durable.Template) error {
	user, dir, err := h.defaults(ctx, t.Image)
	if err != nil {
		return err
	}
	spec.Labels[labelUser], spec.Labels[labelDir] = user, dir
	if user == "" && dir == "/" { // the image names neither
		spec.Labels[labelDir] = ""
	}
	maps.DeleteFunc(spec.Labels, func(k, v string) bool { return v == "" && (k == labelUser || k == labelDir) })
	return nil
}

// interpreterName is E2B's name for the template of its code interpreter.
// interpreterImage is the image that stands in for it.
const (
	interpreterName  = "code-interpreter-v1"
	interpreterImage = "code-interpreter"
)

// desktopName is E2B's name for the template of its desktop SDKs, and the image
// that stands in for it. Nothing else can: without the image there is none.
const desktopName = "desktop"

// isDesktop reports whether a template is the image of a desktop. A template of
// that name that the tenant built comes first.
func (h *templateAPI) isDesktop(ctx context.Context, name string) (bool, error) {
	if name != desktopName {
		return false, nil
	}
	return h.hasImage(ctx, desktopName)
}

// baseImage returns the image of a template that needs no build: the image with
// its name if it exists, else base, else this machine's own programs.
func (h *templateAPI) baseImage(ctx context.Context, name string) (string, error) {
	images := []string{"base"}
	if name == interpreterName {
		images = []string{interpreterImage, "base"}
	}
	for _, image := range images {
		if there, err := h.hasImage(ctx, image); err != nil || there {
			return image, err
		}
	}
	return "host", nil
}

// isBase reports whether a template needs no build.
func isBase(name string) bool { return name == "base" || name == interpreterName }

// resolve replaces the template name in a Spec with an image, a built template
// or a snapshot. A snapshot is found by its id, or as the newest with its name.
func (h *templateAPI) resolve(ctx context.Context, spec *sandbox.Spec) error {
	ref := spec.Labels[labelTemplate]
	if image, ok := strings.CutPrefix(ref, imageScheme); ok && image != "" {
		spec.Image = image
		return nil
	}
	name, _ := splitRef(ctx, ref)
	var err error
	if isBase(name) {
		spec.Image, err = h.baseImage(ctx, name)
		return err
	}
	var t durable.Template
	if t, spec.Image, err = h.find(ctx, ref); err != nil {
		return err
	}
	if spec.Image != "" {
		return h.setDefaults(ctx, spec, &t)
	}
	if there, err := h.isDesktop(ctx, name); err != nil || there {
		spec.Image = desktopName
		return err
	}
	all, err := h.snapshots.all(ctx, nil)
	if err != nil {
		return err
	}
	for i := range all {
		if s := &all[i]; s.ID == name || hasName(s, ref) {
			spec.Snapshot = s.ID
			for _, k := range []string{labelUser, labelDir} {
				if v := s.Labels[k]; v != "" {
					spec.Labels[k] = v
				}
			}
			return nil
		}
	}
	if name == desktopName {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: ref, Message: "there is no such template, and no such image", Hint: "make the image with: make desktop-image"}
	}
	return &sandbox.Error{
		Code: sandbox.CodeNotFound, Subject: ref, Message: "there is no such template",
		Hint: "use base, a template that was built, a public one of another tenant as TENANT/NAME, a snapshot, or image:REF for an image",
	}
}

// templateInfo is a template in the client's format.
type templateInfo struct {
	TemplateID    string      `json:"templateID"`
	BuildID       string      `json:"buildID"`
	CPUCount      int         `json:"cpuCount"`
	MemoryMB      int64       `json:"memoryMB"`
	DiskSizeMB    int64       `json:"diskSizeMB"`
	Public        bool        `json:"public"`
	Aliases       []string    `json:"aliases"`
	Names         []string    `json:"names"`
	CreatedAt     time.Time   `json:"createdAt"`
	UpdatedAt     time.Time   `json:"updatedAt"`
	CreatedBy     *struct{}   `json:"createdBy"`
	LastSpawnedAt *time.Time  `json:"lastSpawnedAt"`
	SpawnCount    int         `json:"spawnCount"`
	BuildCount    int         `json:"buildCount"`
	EnvdVersion   string      `json:"envdVersion"`
	BuildStatus   string      `json:"buildStatus"`
	Builds        []buildInfo `json:"builds,omitempty"`
}

// buildInfo is one of the builds of a template that have a tag.
type buildInfo struct {
	BuildID     string    `json:"buildID"`
	Status      string    `json:"status"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	FinishedAt  time.Time `json:"finishedAt"`
	CPUCount    int       `json:"cpuCount"`
	MemoryMB    int64     `json:"memoryMB"`
	EnvdVersion string    `json:"envdVersion"`
}

// toTemplate converts the tags of one template, the newest first.
func toTemplate(tags []durable.Template, builds bool) templateInfo {
	newest, oldest := &tags[0], &tags[len(tags)-1]
	out := templateInfo{
		TemplateID: newest.Name, Public: newest.Public, BuildID: buildID(newest), CPUCount: cpuCount(newest.CPUs), MemoryMB: newest.Memory >> 20,
		Aliases: []string{newest.Name}, Names: []string{newest.Name}, CreatedAt: stamp(oldest.Created), UpdatedAt: stamp(newest.Created),
		EnvdVersion: EnvdVersion, BuildStatus: buildReady,
	}
	seen := map[string]bool{}
	for i := range tags {
		id, at := buildID(&tags[i]), stamp(tags[i].Created)
		if seen[id] {
			continue
		}
		seen[id] = true
		out.BuildCount++
		if builds {
			out.Builds = append(out.Builds, buildInfo{id, buildReady, at, at, at, cpuCount(tags[i].CPUs), tags[i].Memory >> 20, EnvdVersion})
		}
	}
	return out
}

func (h *templateAPI) list(w http.ResponseWriter, r *http.Request) error {
	all, err := h.templates.Templates(r.Context())
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b durable.Template) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), b.Created.Compare(a.Created))
	})
	out := []templateInfo{}
	for first := 0; first < len(all); {
		after := first + 1
		for after < len(all) && all[after].Name == all[first].Name {
			after++
		}
		out = append(out, toTemplate(all[first:after], false))
		first = after
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

func (h *templateAPI) get(w http.ResponseWriter, r *http.Request) error {
	name, _ := splitRef(r.Context(), r.PathValue("id"))
	tags, err := h.tags(r.Context(), name)
	if err != nil {
		return err
	}
	if len(tags) == 0 {
		return noTemplate(name)
	}
	writeJSON(w, http.StatusOK, toTemplate(tags, true))
	return nil
}

// byName serves routes that the multiplexer cannot tell apart. Old clients do not
// escape the slash of TENANT/NAME.
func (h *templateAPI) byName(w http.ResponseWriter, r *http.Request) error {
	id, what, name := r.PathValue("id"), r.PathValue("what"), r.PathValue("name")
	switch {
	case id == "aliases" && name != "":
		return h.alias(w, r, what+"/"+name)
	case id == "aliases":
		return h.alias(w, r, what)
	case what == "tags" && name == "":
		return h.listTags(w, r)
	}
	return noTemplate(id)
}

// alias reports whether a name is taken. Snapshots have names, too.
func (h *templateAPI) alias(w http.ResponseWriter, r *http.Request, ref string) error {
	name, _ := splitRef(r.Context(), ref)
	t, image, err := h.find(r.Context(), ref)
	if err != nil {
		return err
	}
	ready, err := h.isDesktop(r.Context(), name)
	if err != nil {
		return err
	}
	ready = isBase(name) || ready && image == ""
	known, public := image != "" || ready, t.Public || ready
	if !known && !strings.Contains(ref, ":") {
		tags, err := h.tags(r.Context(), name)
		if err != nil {
			return err
		}
		if known = len(tags) > 0; known {
			public = tags[0].Public
		}
	}
	if !known {
		snapshots, err := h.snapshots.all(r.Context(), nil)
		if err != nil {
			return err
		}
		known = slices.ContainsFunc(snapshots, func(s durable.Snapshot) bool { return hasName(&s, strings.ToLower(ref)) })
	}
	if !known {
		return noTemplate(ref)
	}
	writeJSON(w, http.StatusOK, map[string]any{"templateID": name, "public": public})
	return nil
}

// remove removes all tags of a template, or the snapshots that clients
// know by that name.
func (h *templateAPI) remove(w http.ResponseWriter, r *http.Request) error {
	ref := strings.ToLower(r.PathValue("id"))
	name, _ := splitRef(r.Context(), ref)
	tags, err := h.tags(r.Context(), name)
	if err != nil {
		return err
	}
	for _, t := range tags {
		if err := h.templates.RemoveTemplate(r.Context(), t.Name+":"+t.Tag); err != nil {
			return err
		}
	}
	if len(tags) == 0 {
		if err := h.snapshots.removeNamed(r.Context(), ref); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// update says whether other tenants may use a template. It returns the name by
// which they do.
func (h *templateAPI) update(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Public *bool `json:"public"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	if req.Public == nil {
		return invalid("public", "none given")
	}
	name, _ := splitRef(r.Context(), r.PathValue("id"))
	v, err := h.templates.PublishTemplate(r.Context(), name, *req.Public)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]any{"names": []string{v.Name}})
	return nil
}

// maxTags is the maximum number of tags of one request.
const maxTags = 32

// ownTags converts the tags of a request to those of the builder. It refuses an
// empty list and one with too many.
func ownTags(shown []string) ([]string, error) {
	if len(shown) == 0 || len(shown) > maxTags {
		return nil, invalid("tags", "are not between 1 and %d", maxTags)
	}
	own := make([]string, 0, len(shown))
	for _, tag := range shown {
		if tag = ownTag(strings.ToLower(tag)); !slices.Contains(own, tag) {
			own = append(own, tag)
		}
	}
	return own, nil
}

func (h *templateAPI) addTags(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Target string   `json:"target"`
		Tags   []string `json:"tags"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	tags, err := ownTags(req.Tags)
	if err != nil {
		return err
	}
	name, tag := splitRef(r.Context(), req.Target)
	var t durable.Template
	for _, as := range tags {
		if t, err = h.templates.TagTemplate(r.Context(), name+":"+tag, name+":"+as); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusCreated, map[string]any{"tags": req.Tags, "buildID": buildID(&t)})
	return nil
}

func (h *templateAPI) removeTags(w http.ResponseWriter, r *http.Request) error {
	var req struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	tags, err := ownTags(req.Tags)
	if err != nil {
		return err
	}
	name, _ := splitRef(r.Context(), req.Name)
	for _, tag := range tags {
		if err := h.templates.RemoveTemplate(r.Context(), name+":"+tag); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// taggedBuild is a tag in the client's format.
type taggedBuild struct {
	Tag       string    `json:"tag"`
	BuildID   string    `json:"buildID"`
	CreatedAt time.Time `json:"createdAt"`
}

func (h *templateAPI) listTags(w http.ResponseWriter, r *http.Request) error {
	name, _ := splitRef(r.Context(), r.PathValue("id"))
	tags, err := h.tags(r.Context(), name)
	if err != nil {
		return err
	}
	if len(tags) == 0 {
		return noTemplate(name)
	}
	out := []taggedBuild{}
	for i := range tags {
		out = append(out, taggedBuild{toTag(tags[i].Tag), buildID(&tags[i]), stamp(tags[i].Created)})
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}
