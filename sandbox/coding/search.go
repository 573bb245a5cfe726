package coding

// SearchRequest says what to search for in the files of a sandbox: by name, by
// content, or by both.
type SearchRequest struct {
	Path string `json:"path" maxLength:"4096" doc:"absolute path of a directory"`
	// Name is a pattern of names. With a slash it is of paths below Path, where **
	// stands for any directories.
	Name string `json:"name,omitempty" maxLength:"1024" doc:"a pattern of names such as *.go; with a slash it is of paths, such as src/**/*.go"`
	// Content is a regular expression in the syntax of Go (RE2), for single lines.
	Content string `json:"content,omitempty" maxLength:"4096" doc:"a regular expression (RE2) for lines of text files"`
	// Literal takes Content as it is.
	Literal    bool `json:"literal,omitempty" doc:"content is text, not a regular expression"`
	IgnoreCase bool `json:"ignoreCase,omitempty"`
	// Exclude are names of files and directories to leave out. Nil: .git and
	// node_modules.
	Exclude []string `json:"exclude,omitempty" maxItems:"32" doc:"names of files and directories to leave out; .git and node_modules if it is left out"`
	// Max is the maximum number of matches. 0 means 200.
	Max int `json:"max,omitempty" minimum:"0" maximum:"10000" doc:"matches; 200 if it is left out"`
}

// SearchResult is what was found, in the order of the paths.
type SearchResult struct {
	Matches []SearchMatch `json:"matches"`
	Files   int           `json:"files" doc:"files that were looked at"`
	// Skipped are files that were not searched because they are too large.
	Skipped   int  `json:"skipped,omitempty" doc:"files that are larger than 4 MiB, and were not searched"`
	Truncated bool `json:"truncated,omitempty" doc:"there may be more matches: the limit of matches, of files or of bytes was reached"`
}

// SearchMatch is a file, or a line of a file.
type SearchMatch struct {
	Path   string `json:"path" doc:"relative to the directory of the request"`
	Line   int    `json:"line,omitempty" doc:"number of the line, if content was asked for"`
	Column int    `json:"column,omitempty" doc:"first matching byte of the line, from 1"`
	Text   string `json:"text,omitempty" doc:"the line, at most 1000 bytes of it around the match"`
}

// PatchRequest is a patch for files of a sandbox.
type PatchRequest struct {
	Path string `json:"path" maxLength:"4096" doc:"absolute path of the directory that names in the patch are relative to"`
	// Patch is a unified diff, also one of git, or a patch of the apply_patch tool,
	// which begins with "*** Begin Patch".
	Patch string `json:"patch" maxLength:"8388608" doc:"a unified diff, or a patch in the format of the apply_patch tool"`
	// DryRun only checks.
	DryRun bool `json:"dryRun,omitempty" doc:"only check whether the patch fits"`
}

// PatchResult is what a patch changed.
type PatchResult struct {
	Files []PatchedFile `json:"files"`
}

// PatchedFile is a file that a patch changed.
type PatchedFile struct {
	Path      string    `json:"path" doc:"as in the patch"`
	OldPath   string    `json:"oldPath,omitempty" doc:"of a renamed or copied file"`
	Status    GitChange `json:"status" enum:"added,modified,deleted,renamed,copied"`
	Additions int       `json:"additions"`
	Deletions int       `json:"deletions"`
}
