package layer

// Limits are the limits of one image. A zero field means the default; there is
// no way to disable a limit.
type Limits struct {
	Layers    int   // layers of one image; default 512
	Entries   int   // members of all layers together; default 1<<20
	FileSize  int64 // bytes of one file; default 32 GiB
	ImageSize int64 // bytes of all files of all layers; default 64 GiB
	Download  int64 // compressed bytes of all layers; default 64 GiB
	Ratio     int64 // maximum compression ratio of a layer larger than RatioFrom; default 200
	RatioFrom int64 // bytes of a layer for which Ratio does not apply; default 256 MiB
	PathLen   int   // bytes of a member's name; default 4096
	Depth     int   // directories above a file; default 1024
	Manifest  int64 // bytes of a manifest, an index or a config; default 8 MiB
}

// WithDefaults returns l with zero fields replaced by defaults.
func (l Limits) WithDefaults() Limits {
	def(&l.Layers, 512)
	def(&l.Entries, 1<<20)
	def(&l.FileSize, 32<<30)
	def(&l.ImageSize, 64<<30)
	def(&l.Download, 64<<30)
	def(&l.Ratio, 200)
	def(&l.RatioFrom, 256<<20)
	def(&l.PathLen, 4096)
	def(&l.Depth, 1024)
	def(&l.Manifest, 8<<20)
	return l
}

func def[T int | int64](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}
