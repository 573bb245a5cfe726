package bridgeapi

import "net/http"

// openAPI describes the routes in the detail that clients need for generating
// code.
func openAPI(w http.ResponseWriter, _ *http.Request, _ *call) error {
	type operation struct {
		ID        string                       `json:"operationId"`
		Responses map[string]map[string]string `json:"responses"`
	}
	paths := map[string]map[string]operation{}
	add := func(method, path, id, status string) {
		if paths[path] == nil {
			paths[path] = map[string]operation{}
		}
		paths[path][method] = operation{id, map[string]map[string]string{status: {"description": "success"}}}
	}
	const sandbox = "/v1/sandbox/{id}"
	add("get", "/health", "healthCheck", "200")
	add("post", "/v1/sandbox", "createSandbox", "200")
	add("delete", sandbox, "deleteSandbox", "204")
	add("get", sandbox+"/running", "isSandboxRunning", "200")
	add("post", sandbox+"/exec", "execCommand", "200")
	add("get", sandbox+"/file/{path}", "readFile", "200")
	add("put", sandbox+"/file/{path}", "writeFile", "200")
	add("post", sandbox+"/persist", "persistWorkspace", "200")
	add("post", sandbox+"/hydrate", "hydrateWorkspace", "200")
	add("get", sandbox+"/pty", "ptyTerminal", "101")
	add("post", sandbox+"/session", "createSession", "200")
	add("delete", sandbox+"/session/{sid}", "deleteSession", "200")
	add("post", sandbox+"/tunnel/{port}", "createTunnel", "200")
	add("delete", sandbox+"/tunnel/{port}", "deleteTunnel", "204")
	writeJSON(w, http.StatusOK, map[string]any{
		"openapi": "3.1.0", "info": map[string]string{"title": "Atoll: bridge of sandboxes", "version": "1"}, "paths": paths,
	})
	return nil
}
