#!/bin/bash
uname -s
read -r a b <numbers.txt
echo $((a * b)) >product.txt
