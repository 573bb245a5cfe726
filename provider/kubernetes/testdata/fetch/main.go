// Command fetch runs inside the pods of tests, whose image has no curl. It prints
// the status and the body of an answer, by the proxy and the authorities that its
// environment names.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	client := http.Client{Timeout: 30 * time.Second}
	res, err := client.Get(os.Args[1])
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	fmt.Printf("%d %s\n", res.StatusCode, body)
}
