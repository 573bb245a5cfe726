package image

const childRole = "ATOLL_IMAGE_TEST_CHILD"

func child(string) int { return 0 }
