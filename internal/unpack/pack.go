package unpack

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// The files that a light program embeds.
const (
	packedFile = "engine.zst"
	sumFile    = "engine.sha256"
)

// Pack compresses an executable into a directory, where a light program embeds
// it. It does nothing if it is there already.
func Pack(executable, dir string) error {
	content, err := os.ReadFile(executable)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	packed, sumPath := filepath.Join(dir, packedFile), filepath.Join(dir, sumFile)
	if before, err := os.ReadFile(sumPath); err == nil && strings.TrimSpace(string(before)) == digest {
		if _, err := os.Stat(packed); err == nil {
			return nil
		}
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithWindowSize(8<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	// Without its digest, the packed program is not used.
	if err := os.Remove(sumPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(packed, z.EncodeAll(content, nil), 0o644); err != nil {
		return err
	}
	return os.WriteFile(sumPath, []byte(digest+"\n"), 0o644)
}
