"""What a fit returns: q at its lambda, with its moments, draws, ELBO and k-hat."""
