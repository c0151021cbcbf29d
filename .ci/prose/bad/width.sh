# expect: more than 120 columns
echo word word word word word word word word word word word word word word word word word word word word word word word word word 
