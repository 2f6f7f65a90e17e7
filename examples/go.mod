module github.com/postrider/postrider/examples

go 1.25

require github.com/postrider/postrider v0.0.0
