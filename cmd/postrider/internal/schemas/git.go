package schemas

import (
	"archive/zip"
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/postrider/postrider/cmd/postrider/internal/redact"
)

// maxTree bounds the files of a folder at a commit, in bytes.
const maxTree = 64 << 20

// fromGit reads a folder as it is in a commit of the repository around it. A folder that
// the commit does not have is empty.
func fromGit(ctx context.Context, folder, ref string) (fs.FS, error) {
	if ref == "" {
		return nil, errors.New("no commit is named: write git:REF, such as git:origin/main")
	}
	top, err := git(ctx, folder, nil, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, fmt.Errorf("no repository around %s: name a folder in a repository with --schemas: %w", folder, err)
	}
	commit, err := git(ctx, folder, nil, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		return nil, fmt.Errorf("no commit of this name in the repository around %s: fetch it, or correct the name", folder)
	}
	prefix, err := git(ctx, folder, nil, "rev-parse", "--show-prefix")
	if err != nil {
		return nil, err
	}
	inside := strings.TrimRight(string(prefix), "\n")
	args := []string{"ls-tree", "-r", "-z", "-l", strings.TrimSpace(string(commit))}
	if inside != "" {
		args = append(args, "--", inside)
	}
	list, err := git(ctx, strings.TrimRight(string(top), "\n"), nil, args...)
	if err != nil {
		return nil, err
	}
	return blobs(ctx, folder, inside, string(list))
}

// inRepository is the path of a folder from the top of the repository around it. Outside of a
// repository it is the folder as named.
func inRepository(ctx context.Context, folder string) string {
	prefix, err := git(ctx, folder, nil, "rev-parse", "--show-prefix")
	if err != nil {
		return filepath.ToSlash(folder)
	}
	return strings.TrimRight(string(prefix), "\n")
}

// blobs reads the files of a tree's listing.
func blobs(ctx context.Context, folder, prefix, list string) (fs.FS, error) {
	var names []string
	var ids bytes.Buffer
	total := 0
	for entry := range strings.SplitSeq(list, "\x00") {
		head, name, ok := strings.Cut(entry, "\t")
		if !ok {
			continue
		}
		field := strings.Fields(head) // mode, type, id, size
		if len(field) != 4 || field[1] != "blob" {
			return nil, fmt.Errorf("%s is not a file", name)
		}
		if field[0] == "120000" {
			return nil, fmt.Errorf("%s is a link: replace it by the file", name)
		}
		var size int
		if _, err := fmt.Sscan(field[3], &size); err != nil {
			return nil, fmt.Errorf("%s: unknown size %q", name, field[3])
		}
		if total += size; total > maxTree {
			return nil, fmt.Errorf("the folder has more than %d MiB", maxTree>>20)
		}
		names = append(names, strings.TrimPrefix(name, prefix))
		ids.WriteString(field[2] + "\n")
	}
	texts, err := git(ctx, folder, &ids, "cat-file", "--batch")
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z := zip.NewWriter(&packed)
	in := bufio.NewReader(bytes.NewReader(texts))
	for _, name := range names {
		head, err := in.ReadString('\n')
		var id, kind string
		var size int64
		if _, scanned := fmt.Sscan(head, &id, &kind, &size); err != nil || scanned != nil {
			return nil, fmt.Errorf("read %s: unexpected answer of git cat-file", name)
		}
		w, err := z.Create(name)
		if err != nil {
			return nil, err
		}
		if _, err := io.CopyN(w, in, size); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if _, err := in.Discard(1); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return zip.NewReader(bytes.NewReader(packed.Bytes()), int64(packed.Len()))
}

// git runs git in a folder. The error is the first line that git wrote.
func git(ctx context.Context, folder string, in io.Reader, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", folder}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errOut
	err := cmd.Run()
	switch {
	case err == nil:
		return out.Bytes(), nil
	case errors.Is(err, exec.ErrNotFound):
		return nil, errors.New("git is not installed: install it, or name a folder")
	}
	line, _, _ := strings.Cut(strings.TrimSpace(errOut.String()), "\n")
	if line == "" {
		line = err.Error()
	}
	return nil, errors.New("git " + args[0] + ": " + redact.OneLine(line))
}
