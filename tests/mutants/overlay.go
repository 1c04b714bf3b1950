package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// writeOverlay puts the mutated files into dir and returns the path of the overlay which
// shows them to the go command in the place of root's own.
func (m mutant) writeOverlay(root, dir string) (string, error) {
	contents := map[string]string{}
	for _, e := range m.edits {
		file := filepath.Join(root, filepath.FromSlash(e.file))
		content, edited := contents[file]
		if !edited {
			text, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			content = string(text)
		}
		content, err := e.apply(content)
		if err != nil {
			return "", err
		}
		contents[file] = content
	}

	replace := map[string]string{}
	for file, content := range contents {
		mutated := filepath.Join(dir, fmt.Sprintf("%d-%s", len(replace), filepath.Base(file)))
		if err := os.WriteFile(mutated, []byte(content), 0o600); err != nil {
			return "", err
		}
		replace[file] = mutated
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, text, 0o600)
}

// apply returns the content with the edit done; the old lines must occur exactly once.
func (e edit) apply(content string) (string, error) {
	lines := strings.Split(content, "\n")
	found, at := 0, 0
	for i := 0; i+len(e.old) <= len(lines); i++ {
		if slices.Equal(lines[i:i+len(e.old)], e.old) {
			found, at = found+1, i
		}
	}
	if found != 1 {
		return "", fmt.Errorf("the old lines occur %d times in %s, want once; the first is %q", found, e.file, e.old[0])
	}
	return strings.Join(slices.Replace(lines, at, at+len(e.old), e.new...), "\n"), nil
}
