package events_test

import (
	"bytes"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// docs/api.md lists what a v1 promises. A name that comes, goes or changes fails
// here, so that it is decided and not overlooked.
func TestTheListOfTheAPIIsTheAPI(t *testing.T) {
	listed := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readFile(t, "docs/api.md"), -1)
	if len(listed) != 2 {
		t.Fatalf("docs/api.md has %d blocks of code, want one for each package", len(listed))
	}
	for i, dir := range []string{".", "eventstest"} {
		want := strings.Split(strings.TrimSpace(listed[i][1]), "\n")
		got := exportedAPI(t, dir)
		for j := range max(len(got), len(want)) {
			if j >= len(got) || j >= len(want) || got[j] != want[j] {
				t.Errorf("%s: docs/api.md says something else from line %d on; the API is\n\n%s", dir, j+1, strings.Join(got, "\n"))
				break
			}
		}
	}
}

// exportedAPI lists the declarations of a package, one line each.
func exportedAPI(t *testing.T, dir string) []string {
	t.Helper()
	fset := token.NewFileSet()
	//lint:ignore SA1019 Good enough for a package without build tags.
	parsed, err := parser.ParseDir(fset, dir, func(f fs.FileInfo) bool { return !strings.HasSuffix(f.Name(), "_test.go") }, 0)
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, p := range parsed {
		for _, f := range p.Files {
			files = append(files, f)
		}
	}
	pkg, err := doc.NewFromFiles(fset, files, "github.com/eventrecorder/events/"+dir)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	add := func(node any) {
		var b bytes.Buffer
		if err := printer.Fprint(&b, fset, node); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.Join(strings.Fields(b.String()), " "))
	}
	funcs := func(list []*doc.Func) {
		for _, f := range list {
			f.Decl.Body, f.Decl.Doc = nil, nil
			add(f.Decl)
		}
	}
	for _, v := range append(pkg.Consts, pkg.Vars...) {
		add(v.Decl)
	}
	funcs(pkg.Funcs)
	for _, typ := range pkg.Types {
		ast.FilterDecl(typ.Decl, ast.IsExported)
		add(typ.Decl)
		funcs(typ.Funcs)
		funcs(typ.Methods)
	}
	return lines
}
