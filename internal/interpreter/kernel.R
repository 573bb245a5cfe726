# The kernel for R. A request is a line of two hexadecimal fields: the code, and
# the environment as NAME=VALUE with zero bytes between.
local({
  mark <- Sys.getenv("ATOLL_KERNEL_MARK")
  Sys.unsetenv("ATOLL_KERNEL_MARK")
  requests <- file("/proc/self/fd/3", "r", blocking = TRUE, raw = TRUE)
  messages <- file("/proc/self/fd/4", "w", raw = TRUE)
  raws <- function(h) if (h == "-") raw() else as.raw(strtoi(substring(h, seq(1, nchar(h), 2), seq(2, nchar(h), 2)), 16L))
  quoted <- function(s) {
    s <- enc2utf8(paste(s, collapse = "\n"))
    for (pair in list(c("\\", "\\\\"), c("\"", "\\\""), c("\n", "\\n"), c("\r", "\\r"), c("\t", "\\t"))) s <- gsub(pair[1], pair[2], s, fixed = TRUE)
    paste0("\"", gsub("[[:cntrl:]]", "?", s), "\"")
  }
  say <- function(...) {
    cat("{", paste(c(...), collapse = ", "), "}\n", sep = "", file = messages)
    flush(messages)
  }
  field <- function(name, value) paste0("\"", name, "\": ", value)
  base64 <- function(b) {
    n <- length(b)
    v <- as.integer(c(b, raw((3 - n %% 3) %% 3)))
    v <- matrix(v, 3)
    digits <- c(LETTERS, letters, 0:9, "+", "/")
    sextets <- rbind(v[1, ] %/% 4, (v[1, ] %% 4) * 16 + v[2, ] %/% 16, (v[2, ] %% 16) * 4 + v[3, ] %/% 64, v[3, ] %% 64)
    out <- digits[sextets + 1]
    if (n %% 3 > 0) out[seq(length(out), by = -1, length.out = 3 - n %% 3)] <- "="
    paste(out, collapse = "")
  }
  dir <- tempfile("plots")
  dir.create(dir)
  options(warn = 1, device = function(...) png(file.path(dir, "plot%03d.png"), ...))
  plots <- function() {
    graphics.off()
    for (f in list.files(dir, full.names = TRUE)) {
      png <- base64(readBin(f, "raw", file.size(f)))
      say(field("type", "\"result\""), field("is_main_result", "false"), field("text", "\"plot\""), field("png", paste0("\"", png, "\"")))
      unlink(f)
    }
  }
  shown <- function(value, main) {
    text <- utils::capture.output(if (isS4(value)) methods::show(value) else print(value))
    if (length(text)) say(field("type", "\"result\""), field("is_main_result", main), field("text", quoted(text)))
  }
  failed <- function(name, e) {
    call <- conditionCall(e)
    where <- if (is.null(call)) "" else paste0("Error in ", paste(deparse(call), collapse = "\n"), ": ")
    say(field("type", "\"error\""), field("name", quoted(name)), field("value", quoted(conditionMessage(e))), field("traceback", quoted(paste0(where, conditionMessage(e)))))
  }
  execute <- function(code) {
    all <- parse(text = code, keep.source = FALSE)
    for (i in seq_along(all)) {
      value <- withVisible(eval(all[[i]], globalenv()))
      if (value$visible) shown(value$value, if (i == length(all)) "true" else "false")
    }
  }
  repeat {
    line <- readLines(requests, 1)
    if (!length(line)) break
    parts <- strsplit(line, " ", fixed = TRUE)[[1]]
    env <- raws(parts[2])
    env <- if (length(env)) strsplit(rawToChar(replace(env, env == 0, as.raw(1))), "\001", fixed = TRUE)[[1]] else character()
    names <- sub("=.*", "", env)
    old <- Sys.getenv(names, NA, names = TRUE)
    for (pair in env) do.call(Sys.setenv, stats::setNames(list(sub("[^=]*=", "", pair)), sub("=.*", "", pair)))
    code <- rawToChar(raws(parts[1]))
    Encoding(code) <- "UTF-8"
    tryCatch(execute(code), error = function(e) failed(class(e)[1], e), interrupt = function(e) say(field("type", "\"error\""), field("name", "\"Interrupt\""), field("value", "\"interrupted\""), field("traceback", "\"\"")))
    try(plots(), silent = TRUE)
    for (n in names) if (is.na(old[[n]])) Sys.unsetenv(n) else do.call(Sys.setenv, stats::setNames(list(old[[n]]), n))
    say(field("type", "\"done\""))
    flush(stdout())
    flush(stderr())
    both <- c(as.raw(0), charToRaw(mark), as.raw(0))
    for (fd in 1:2) {
      out <- file(paste0("/proc/self/fd/", fd), "ab", raw = TRUE)
      writeBin(both, out)
      close(out)
    }
  }
})
