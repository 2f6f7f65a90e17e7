package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/cmd/postrider/internal/reference"
)

// The comments of the newest migration that has one are those of the schema.
func TestReferenceView(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(reference.Docs(t), "..", "store", "pgstore", "internal", "migrate", "migrations", "*.up.sql"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d migrations, %v", len(files), err)
	}
	comment := regexp.MustCompile(`COMMENT ON (VIEW|COLUMN) \{\{schema\}\}\.([a-z_]+)(?:\.([a-z_]+))? IS\s+'((?:[^']|'')*)'`)
	views, columns, names := map[string]string{}, map[string]string{}, []string{}
	for _, file := range files {
		sql, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range comment.FindAllStringSubmatch(string(sql), -1) {
			switch text := strings.ReplaceAll(m[4], "''", "'"); {
			case m[1] == "VIEW":
				views[m[2]] = text
			case m[2] == "messages":
				if !slices.Contains(names, m[3]) {
					names = append(names, m[3])
				}
				columns[m[3]] = text
			}
		}
	}
	var text strings.Builder
	text.WriteString("# The views\n\nPostgreSQL shows the same texts: `\\d+ postrider.messages`. [Ready queries](../postgres.md#what-is-stuck-and-why) are in postgres.md.\n\n| View | Shows |\n|---|---|\n")
	for _, name := range []string{"messages", "states", "lane"} {
		if views[name] == "" {
			t.Errorf("the view %s has no comment", name)
		}
		text.WriteString(reference.Row("`postrider."+name+"`", views[name]))
	}
	text.WriteString("\n## Columns of postrider.messages\n\n| Column | Means |\n|---|---|\n")
	for _, name := range names {
		text.WriteString(reference.Row("`"+name+"`", columns[name]))
	}
	text.WriteString(viewOfSQLite)
	reference.Check(t, "views.md", text.String())
}

const viewOfSQLite = `
## SQLite

The view postrider_messages has the same columns, states and reasons. The view postrider_lane tells who works on each lane.

- Times are microseconds since 1970: ` + "`" + `datetime(created_at / 1000000, 'unixepoch')` + "`" + `.
- sent_at is the minute of the settlement, or created_at if that is later. Of a message that was set aside it is exact. It is NULL for what a person discarded or was sent before the upgrade to this view.
- A question about one state reads no other. Pending and InProgress read what is not sent, Sent reads every row.

## MySQL

The views postrider_messages and postrider_lane have the same columns, states and reasons, except:

- Times are microseconds since 1970: ` + "`" + `FROM_UNIXTIME(created_at / 1000000)` + "`" + `.
- sent_at is the last settlement of that minute, shown a minute later. Of a message that was set aside it is exact and shown at once. It is NULL for messages above an open gap in the numbers, and as on SQLite. It costs about 1.3 MB a day in 64 busy lanes.
- Messages that the filter of a pipe leaves out are shown too, as if the pipe carried them.
- Sent reads every row; Pending and InProgress read and sort what is not sent.

In tests, memstore.Store.Messages answers with the same rows; it notes no sent_at.
`
