module github.com/postrider/postrider/old

go 1.26.0
